// Package live is what a running transfer shows of itself: a Setup, samples of its rates, and events. A Record holds
// them. Screen draws a Record for a terminal, Server serves it as a page, and the JSON form of a View is for programs.
//
// Times are in seconds since the transfer began, rates in bytes per second.
package live

import "sync"

// Setup is what a transfer runs over. It does not change.
type Setup struct {
	// Title says what is transferred.
	Title string `json:"title"`
	// Hosts names the two ends, the sender first.
	Hosts [2]string `json:"hosts"`
	// Rails are the pairs of NICs, by index.
	Rails []RailSetup `json:"rails"`
	// Seconds is how long the transfer will take, 0 if that is not known.
	Seconds float64 `json:"seconds,omitempty"`
	// Checked says that every byte is compared.
	Checked bool `json:"checked"`
	// Actions is what a viewer can do to each rail; it may be empty.
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
	// Name is what Server.Act gets.
	Name string `json:"name"`
	// On is what the button says that turns it on.
	On string `json:"on"`
	// Off is what the button says that turns it off.
	Off string `json:"off"`
	// Key is the key that presses the button.
	Key string `json:"key"`
}

// Sample is the state of a transfer, and its rates since the sample before.
type Sample struct {
	At float64 `json:"at"`
	// Rate is that of the messages that have arrived.
	Rate float64 `json:"bytes_per_second"`
	// Messages counts those that have arrived since the start and, if Setup.Checked, were right.
	Messages int64 `json:"messages"`
	// Bytes are those of the messages.
	Bytes int64 `json:"bytes"`
	// P50 is the median of the time that a message took, in microseconds. It is 0 if none is known.
	P50 float64 `json:"p50_us,omitempty"`
	// P99 is the 99th percentile of that time.
	P99   float64      `json:"p99_us,omitempty"`
	Rails []RailSample `json:"rails"`
	// Lanes is empty if there are very many.
	Lanes []LaneSample `json:"lanes,omitempty"`
}

// RailSample is the state of a rail.
type RailSample struct {
	// Rate is what its NIC took. Bytes that were in flight on a lost rail count there, and again where they were
	// replayed.
	Rate float64 `json:"bytes_per_second"`
	// Up is how many of its lanes are in service.
	Up int `json:"up"`
	// Lanes is how many lanes it has.
	Lanes int `json:"lanes"`
	// Retransmits counts those of its NICs since the start.
	Retransmits uint64 `json:"retransmits"`
	// Faults names the actions that are on.
	Faults []string `json:"faults,omitempty"`
}

// LaneSample is the state of a lane.
type LaneSample struct {
	Lane int     `json:"lane"`
	Rail int     `json:"rail"`
	Rate float64 `json:"bytes_per_second"`
	// State is "up", or how far the lane is on its way out of service and back.
	State string `json:"state"`
}

// Event is something that happened.
type Event struct {
	At float64 `json:"at"`
	// Rail is the rail that it is about, -1 if there is none.
	Rail int `json:"rail"`
	// Bad says that something got worse.
	Bad  bool   `json:"bad"`
	Text string `json:"text"`
}

// A Record forgets its oldest samples and events beyond these numbers.
const (
	maxSamples = 3000
	maxEvents  = 1000
)

// Record is what a transfer has shown so far. Make one with NewRecord. Any goroutine may call its methods.
type Record struct {
	mu       sync.Mutex
	setup    Setup
	samples  []Sample
	events   []Event
	dropped  int    // events that were forgotten
	ended    string // what was said at the end, empty before
	watchers map[chan update]struct{}
}

// update is one change of a Record. One of its fields is set.
type update struct {
	Sample *Sample `json:"sample,omitempty"`
	Event  *Event  `json:"event,omitempty"`
	Ended  string  `json:"ended,omitempty"`
}

// NewRecord returns an empty Record of a transfer.
func NewRecord(s Setup) *Record {
	return &Record{setup: s, samples: []Sample{}, events: []Event{}, watchers: map[chan update]struct{}{}}
}

// Sample adds a sample.
func (r *Record) Sample(s Sample) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.samples = trimmed(append(r.samples, s), maxSamples)
	r.tell(update{Sample: &s})
}

// Event adds an event.
func (r *Record) Event(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := append(r.events, e)
	r.events = trimmed(all, maxEvents)
	r.dropped += len(all) - len(r.events)
	r.tell(update{Event: &e})
}

// End says how the transfer ended. Nothing follows.
func (r *Record) End(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = text
	r.tell(update{Ended: text})
}

// trimmed drops the oldest if there are twice as many as max, so that dropping is rare.
func trimmed[T any](list []T, most int) []T {
	if len(list) < 2*most {
		return list
	}
	return append(make([]T, 0, 2*most), list[len(list)-most:]...)
}

// View is what a Record holds at one time. Its slices are not changed later.
type View struct {
	Setup   Setup    `json:"setup"`
	Samples []Sample `json:"samples"`
	Events  []Event  `json:"events"`
	// Ended is what was said at the end, empty before.
	Ended string `json:"ended,omitempty"`
	// Dropped counts events before those of Events.
	Dropped int `json:"dropped_events,omitempty"`
}

// View returns what r holds.
func (r *Record) View() View {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.view()
}

func (r *Record) view() View {
	n, m := len(r.samples), len(r.events)
	return View{Setup: r.setup, Samples: r.samples[:n:n], Events: r.events[:m:m], Ended: r.ended, Dropped: r.dropped}
}

// updatesWaiting is how many updates may wait for a viewer. One that is slower is dropped, and connects again.
const updatesWaiting = 64

// watch returns what r holds, and a channel of what follows. The channel is closed after the end, and for a viewer that
// is too slow. stop must be called.
func (r *Record) watch() (now View, next <-chan update, stop func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := make(chan update, updatesWaiting)
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

// tell gives an update to all viewers. r.mu is held.
func (r *Record) tell(u update) {
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
