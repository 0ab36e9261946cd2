package ibverbx

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"

	"ibverbx/internal/counter"
)

// EventKind is the kind of an event.
type EventKind uint8

// Events.
const (
	// EventFailed says that the VirtualQP has failed. Outstanding requests are flushed.
	EventFailed EventKind = iota + 1
	// EventLaneDown says that a lane is out of service. The others continue.
	EventLaneDown
	// EventLaneUp says that a lane is in service again.
	EventLaneUp
	// EventRailDown says that the last data lane on a rail is out of service.
	EventRailDown
	// EventRailUp says that the first data lane on a rail is in service again.
	EventRailUp
	// EventRecovered says that all lanes are in service again.
	EventRecovered
	// EventDegraded says that the first lane is out of service. It comes once until EventRecovered.
	EventDegraded
)

var eventNames = [...]string{
	EventFailed: "failed", EventLaneDown: "lane down", EventLaneUp: "lane up",
	EventRailDown: "rail down", EventRailUp: "rail up", EventRecovered: "recovered", EventDegraded: "degraded",
}

// String names the event.
func (k EventKind) String() string {
	if int(k) < len(eventNames) && eventNames[k] != "" {
		return eventNames[k]
	}
	return fmt.Sprintf("EventKind(%d)", uint8(k))
}

// Event is something that happened to a VirtualQP outside of its requests.
type Event struct {
	Kind EventKind
	QP   *VirtualQP
	// Lane is the index of the lane; -1 if the VirtualQP failed and no single lane is to blame.
	Lane int
	// Rail is the rail of the lane; -1 if Lane is.
	Rail int
	// Sealed says that packets of the rail are encrypted and authenticated.
	Sealed bool
	// Err is the cause; nil if something is in service again.
	Err error
}

// maxEvents is how many events are held. More are lost and counted. Err and Stats also show the state
// that they report.
const maxEvents = 256

// Events takes up to len(dst) events, oldest first. It never blocks.
func (c *VirtualCQ) Events(dst []Event) int {
	n := copy(dst, c.events)
	c.events = append(c.events[:0], c.events[n:]...)
	return n
}

// notice adds an event and a record in the log.
func (c *VirtualCQ) notice(e Event) {
	if e.QP.setup.cfg.Log != nil {
		e.log(e.QP.setup.cfg.Log)
	}
	if len(c.events) == maxEvents {
		c.stats.eventsLost.Add(1)
		return
	}
	c.events = append(c.events, e)
}

// notice adds the event of a lane that went out of service or is back. It also adds those of the rail and
// of the VirtualQP, if the lane was the last or the first.
func (f *failover) notice(kind EventKind, l *lane, cause error) {
	e := Event{Kind: kind, QP: f.setup.owner, Lane: int(l.index), Rail: int(l.rail), Err: cause}
	e.Sealed = f.setup.sealed(int(l.rail))
	f.setup.cq.notice(e)
	alone := l.role == roleData // no other data lane is in service on its rail
	for _, other := range f.setup.lanes {
		if other != l && other.rail == l.rail && other.life.state == laneUp {
			alone = false
		}
	}
	if alone {
		e.Kind = EventRailDown
		if kind == EventLaneUp {
			e.Kind = EventRailUp
		}
		f.setup.cq.notice(e)
	}
	switch {
	case kind == EventLaneUp && f.out == 0:
		e.Kind = EventRecovered
		f.setup.cq.notice(e)
	case kind == EventLaneDown && f.out == 1:
		e.Kind = EventDegraded
		f.setup.cq.notice(e)
	}
}

// log writes a record: an error if the VirtualQP has failed, a warning if it is degraded or a rail is down, and
// information if that is over. Single lanes are for debugging: a stall of the peer loses and restores them all.
func (e *Event) log(to *slog.Logger) {
	level := slog.LevelInfo
	switch e.Kind {
	case EventFailed:
		level = slog.LevelError
	case EventRailDown, EventDegraded:
		level = slog.LevelWarn
	case EventLaneDown, EventLaneUp:
		level = slog.LevelDebug
	case EventRailUp, EventRecovered:
	}
	attrs := make([]slog.Attr, 0, 6)
	attrs = append(attrs, slog.Uint64("vqp", e.QP.setup.incarnation))
	if e.Rail >= 0 {
		device := e.QP.setup.rails.rails[e.Rail].name
		attrs = append(attrs, slog.Int("lane", e.Lane), slog.Int("rail", e.Rail), slog.String("device", device), slog.Bool("sealed", e.Sealed))
	}
	if e.Err != nil {
		attrs = append(attrs, slog.Any("cause", e.Err))
	}
	to.LogAttrs(context.Background(), level, e.Kind.String(), attrs...)
}

// Counts is what a lane, a rail or a whole VirtualQP did. It is always on, and costs a few additions per
// physical request.
type Counts struct {
	Fragments uint64 // physical requests that a NIC took, records and notifications included
	Bytes     uint64 // bytes that they wrote or read
	Doorbells uint64 // posts of which a NIC took something
	CQEs      uint64 // physical completions, of sends and receives
	Refusals  uint64 // posts that a NIC took only in part, or not at all
	Stale     uint64 // completions of an earlier generation of a lane
	HighWater int    // highest number of requests that were outstanding at once
}

// counters are the Counts of a lane, written by the goroutine that uses the VirtualQP.
type counters struct {
	fragments, bytes, doorbells, cqes, refusals, stale, highWater counter.Counter
}

// load returns the present values.
func (c *counters) load() Counts {
	return Counts{
		Fragments: c.fragments.Load(), Bytes: c.bytes.Load(), Doorbells: c.doorbells.Load(), CQEs: c.cqes.Load(),
		Refusals: c.refusals.Load(), Stale: c.stale.Load(), HighWater: int(c.highWater.Load()),
	}
}

// add adds other to c. High-water marks do not add up: the highest counts.
func (c *Counts) add(other *Counts) {
	c.Fragments += other.Fragments
	c.Bytes += other.Bytes
	c.Doorbells += other.Doorbells
	c.CQEs += other.CQEs
	c.Refusals += other.Refusals
	c.Stale += other.Stale
	c.HighWater = max(c.HighWater, other.HighWater)
}

// since returns what was counted since before.
func (c Counts) since(before *Counts) Counts {
	c.Fragments -= before.Fragments
	c.Bytes -= before.Bytes
	c.Doorbells -= before.Doorbells
	c.CQEs -= before.CQEs
	c.Refusals -= before.Refusals
	c.Stale -= before.Stale
	return c
}

// LaneStats is what one lane did.
type LaneStats struct {
	Lane int
	Rail int
	QPN  uint32
	// Role is "data", "message" or "notify".
	Role string
	// State is "up" or, on the way out of service and back, "dying", "gone", "idle", "offered" or
	// "probing".
	State string
	// Generation counts the QPs that the lane has had before.
	Generation int
	// Deaths counts how often the lane went out of service.
	Deaths uint64
	// Replayed counts the requests that other lanes took over or its next generation sent again.
	Replayed uint64
	// Cause is why the lane is out of service; nil while it is up.
	Cause error
	Counts
}

// MarshalJSON has the text of the cause, if there is one. An error has no form of its own in JSON.
func (s LaneStats) MarshalJSON() ([]byte, error) {
	type plain LaneStats // without this method
	cause := ""
	if s.Cause != nil {
		cause = s.Cause.Error()
	}
	return json.Marshal(struct {
		plain
		Cause string `json:",omitempty"`
	}{plain(s), cause})
}

// RailStats is what the lanes on one rail did together.
type RailStats struct {
	Rail int
	// Device is the name of the NIC.
	Device string
	// Up is how many data lanes are in service on the rail.
	Up int
	// Sealed says that packets of the rail are encrypted and authenticated (Config.Seal).
	Sealed bool
	Counts
}

// Stats is what a VirtualQP did. Its own HighWater counts the user's send requests.
type Stats struct {
	Posted uint64 // send requests that were taken
	// Completed counts the send requests that have ended. If a single lane passes everything through,
	// it counts the completions that were reported.
	Completed     uint64
	RecvPosted    uint64 // receives of both kinds that were taken
	RecvCompleted uint64 // receives of both kinds that have ended
	Out           int    // lanes that are out of service
	ControlErrors uint64 // control messages that could not be sent or read
	Counts
	Lanes []LaneStats
	Rails []RailStats
}

// Stats returns what the VirtualQP has done so far, by lane and by rail. Any goroutine may call it at any
// time. Numbers that change meanwhile need not belong to the same moment. After Close there are no lanes.
func (q *VirtualQP) Stats() Stats {
	send, recv, pass, u := &q.send, &q.recv, &q.pass, &q.setup
	s := Stats{
		Completed: send.ended.Load() + pass.completed.Load(), RecvCompleted: recv.completed.Load() + pass.recvCompleted.Load(),
		ControlErrors: q.failover.link.errors.Load(), Rails: make([]RailStats, u.rails.Len()),
	}
	s.Posted = max(send.posted.Load()+pass.posted.Load(), s.Completed)
	s.RecvPosted = max(recv.posted.Load()+pass.recvPosted.Load(), s.RecvCompleted)
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range s.Rails {
		s.Rails[i] = RailStats{Rail: i, Device: u.rails.rails[i].name, Sealed: u.sealed(i), Counts: q.failover.railPast[i]}
	}
	for i, l := range u.all {
		v, counts := &l.life, l.counts.load()
		s.Lanes = append(s.Lanes, LaneStats{
			Lane: i, Rail: int(l.rail), QPN: l.num, Role: roleNames[l.role], State: v.state.String(), Generation: int(l.generation),
			Deaths: v.deaths, Replayed: v.replayed.Load(), Counts: counts,
		})
		if v.state != laneUp {
			s.Out++
			s.Lanes[i].Cause = v.why()
		} else if l.role == roleData {
			s.Rails[l.rail].Up++
		}
		s.add(&counts)
		here := counts.since(&v.before)
		s.Rails[l.rail].add(&here)
	}
	s.HighWater = int(max(send.highWater.Load(), pass.highWater.Load()))
	return s
}
