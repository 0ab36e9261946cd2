// Package monitor shows a running transfer. A [Record] holds a [Setup], samples of rates,
// and events. A [Screen] draws the Record on a terminal, and a [Server] serves it as a web page.
//
// Times are in seconds since the start of the transfer, rates in bytes per second. Programs read the JSON
// form of a [View] ("ibverbx demo --json", docs/plot): add fields, but do not rename them.
package monitor

import "sync"

// Setup describes a transfer. It does not change.
type Setup struct {
	// Title describes the transferred data.
	Title string `json:"title"`
	// Hosts names the two hosts, the sender first.
	Hosts [2]string `json:"hosts"`
	// Rails lists the NIC pairs, by index.
	Rails []RailSetup `json:"rails"`
	// Seconds is the expected duration of the transfer, 0 if unknown.
	Seconds float64 `json:"seconds,omitempty"`
	// Checked is set if every byte is compared.
	Checked bool `json:"checked"`
	// Actions lists the actions available to a viewer for each rail; it may be empty.
	Actions []Action `json:"actions,omitempty"`
}

// RailSetup names the NICs of a rail.
type RailSetup struct {
	// Device is the NIC of the sender.
	Device string `json:"device"`
	// Peer is the NIC of the receiver.
	Peer string `json:"peer"`
}

// Action is a fault that a viewer can turn on and off.
type Action struct {
	// Name is the argument passed to Server.Act.
	Name string `json:"name"`
	// On is the label of the button that turns it on.
	On string `json:"on"`
	// Off is the label of the button that turns it off.
	Off string `json:"off"`
	// Key is the key that presses the button.
	Key string `json:"key"`
}

// Sample is the state of a transfer, with rates since the previous sample.
type Sample struct {
	At float64 `json:"at"`
	// Rate is the rate of received messages.
	Rate float64 `json:"bytes_per_second"`
	// Messages counts messages received since the start and, if Setup.Checked, verified.
	Messages int64 `json:"messages"`
	// Bytes is the total size of these messages.
	Bytes int64 `json:"bytes"`
	// P50 is the median message time in microseconds, 0 if unknown.
	P50 float64 `json:"p50_us,omitempty"`
	// P99 is the 99th percentile of the message times.
	P99   float64      `json:"p99_us,omitempty"`
	Rails []RailSample `json:"rails"`
	// Lanes is omitted if the transfer has very many lanes.
	Lanes []LaneSample `json:"lanes,omitempty"`
}

// RailSample is the state of a rail.
type RailSample struct {
	// Rate counts the bytes accepted by the NIC. Bytes in flight on a lost rail count there, and
	// again on the rail that replayed them.
	Rate float64 `json:"bytes_per_second"`
	// Up is the number of lanes in service.
	Up int `json:"up"`
	// Lanes is the number of lanes.
	Lanes int `json:"lanes"`
	// Retransmits counts packets, and chunks of package reliable, sent again since the start.
	Retransmits uint64 `json:"retransmits"`
	// Faults names the active actions.
	Faults []string `json:"faults,omitempty"`
}

// LaneSample is the state of a lane.
type LaneSample struct {
	Lane int     `json:"lane"`
	Rail int     `json:"rail"`
	Rate float64 `json:"bytes_per_second"`
	// State is "up", or the current step of the lane's recovery.
	State string `json:"state"`
}

// Event is an event during a transfer.
type Event struct {
	At float64 `json:"at"`
	// Rail is the affected rail, or -1.
	Rail int `json:"rail"`
	// Bad is set if the event is a problem.
	Bad  bool   `json:"bad"`
	Text string `json:"text"`
}

// A Record keeps at least this many of the latest samples and events, and at most twice as many.
const (
	maxSamples = 3000
	maxEvents  = 1000
)

// Record is the history of a transfer. Create it with NewRecord. Its methods are safe for
// concurrent use.
type Record struct {
	mu       sync.Mutex
	setup    Setup
	samples  []Sample
	events   []Event
	dropped  int    // number of dropped events
	ended    string // final message, empty before
	watchers map[chan update]struct{}
}

// update is one change of a Record. Exactly one field is set.
type update struct {
	Sample *Sample `json:"sample,omitempty"`
	Event  *Event  `json:"event,omitempty"`
	Ended  string  `json:"ended,omitempty"`
}

// NewRecord returns an empty Record for a transfer.
func NewRecord(s Setup) *Record {
	return &Record{setup: s, samples: []Sample{}, events: []Event{}, watchers: map[chan update]struct{}{}}
}

// Sample adds a sample.
func (r *Record) Sample(s Sample) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.samples = trim(append(r.samples, s), maxSamples)
	r.publish(update{Sample: &s})
}

// Event adds an event.
func (r *Record) Event(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := append(r.events, e)
	r.events = trim(all, maxEvents)
	r.dropped += len(all) - len(r.events)
	r.publish(update{Event: &e})
}

// End records the final message of the transfer. It is the last update.
func (r *Record) End(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = text
	r.publish(update{Ended: text})
}

// trim drops the oldest elements once the list has twice the maximum, so that dropping is rare.
func trim[T any](list []T, most int) []T {
	if len(list) < 2*most {
		return list
	}
	return append(make([]T, 0, 2*most), list[len(list)-most:]...)
}

// View is a snapshot of a Record. Its slices are not modified later.
type View struct {
	Setup   Setup    `json:"setup"`
	Samples []Sample `json:"samples"`
	Events  []Event  `json:"events"`
	// Ended is the final message, empty before.
	Ended string `json:"ended,omitempty"`
	// Dropped counts events dropped before Events.
	Dropped int `json:"dropped_events,omitempty"`
}

// View returns a snapshot of r.
func (r *Record) View() View {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.view()
}

func (r *Record) view() View {
	n, m := len(r.samples), len(r.events)
	return View{Setup: r.setup, Samples: r.samples[:n:n], Events: r.events[:m:m], Ended: r.ended, Dropped: r.dropped}
}

// maxUpdates is the maximum number of updates queued for a viewer. A slower viewer is dropped
// and reconnects.
const maxUpdates = 64

// watch returns a snapshot of r and a channel of further updates. The channel is closed after the
// final one, and if the viewer is too slow. stop must be called.
func (r *Record) watch() (now View, next <-chan update, stop func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := make(chan update, maxUpdates)
	if r.ended != "" {
		close(c)
	} else {
		r.watchers[c] = struct{}{}
	}
	return r.view(), c, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.watchers, c)
	}
}

// publish sends an update to all viewers. r.mu must be held.
func (r *Record) publish(u update) {
	for c := range r.watchers {
		select {
		case c <- u:
			if u.Ended == "" {
				continue
			}
		default:
		}
		close(c)
		delete(r.watchers, c)
	}
}
