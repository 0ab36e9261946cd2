package ibverbx

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"ibverbx/internal/counter"
)

// EventKind is the kind of an Event.
type EventKind uint8

// Event kinds.
const (
	// EventFailed means that the VirtualQP has failed. Its outstanding requests are flushed.
	EventFailed EventKind = iota + 1
	// EventLaneDown means that a lane is out of service. The other lanes continue.
	EventLaneDown
	// EventLaneUp means that a lane is back in service.
	EventLaneUp
	// EventRailDown means that a rail has lost its last working data lane.
	EventRailDown
	// EventRailUp means that the first data lane on a failed rail is back in service.
	EventRailUp
	// EventRecovered means that all lanes are back in service.
	EventRecovered
	// EventDegraded means that a lane is out of service while all others work. It is reported once until
	// EventRecovered.
	EventDegraded
)

var eventNames = [...]string{
	EventFailed: "failed", EventLaneDown: "lane down", EventLaneUp: "lane up",
	EventRailDown: "rail down", EventRailUp: "rail up", EventRecovered: "recovered", EventDegraded: "degraded",
}

// String returns the event's name, such as "rail down".
func (k EventKind) String() string {
	if int(k) < len(eventNames) && eventNames[k] != "" {
		return eventNames[k]
	}
	return fmt.Sprintf("EventKind(%d)", uint8(k))
}

// Event reports a change in a VirtualQP's lanes or its failure.
type Event struct {
	// Kind is the kind of event.
	Kind EventKind
	// QP is the affected VirtualQP.
	QP *VirtualQP
	// Lane is the index of the lane. It is -1 if the VirtualQP failed without a single lane to blame.
	Lane int
	// Rail is the index of the lane's rail, or -1 if Lane is -1.
	Rail int
	// Sealed is set when the rail's packets are encrypted and authenticated.
	Sealed bool
	// Err is the cause. It is nil for recovery events.
	Err error
}

// maxEvents limits the queued events. Excess ones are counted and dropped; Err and Stats still show the state.
const maxEvents = 256

// Events removes up to len(dst) queued events, oldest first, and returns their number. It never blocks.
// The queue holds 256 events; CQStats.EventsLost counts dropped ones.
func (c *VirtualCQ) Events(dst []Event) int {
	n := copy(dst, c.events)
	c.events = append(c.events[:0], c.events[n:]...)
	return n
}

// railLoss records the losses of a rail. It is written under VirtualQP.mu.
type railLoss struct {
	// down is set while all data lanes on the rail are out of service; since is the time of the loss.
	down  bool
	since int64
	// failover is the longest failover of a lane since then, and total the sum over all losses, in nanoseconds.
	failover, total int64
	// lost and recovered are the counters of RailStats.
	lost, recovered uint64
}

// fill sets the fields of s.
func (r *railLoss) fill(s *RailStats) {
	if r.down {
		s.Down = 1
	}
	s.Lost, s.Recovered, s.FailoverTime = r.lost, r.recovered, time.Duration(r.total)
}

// lossReport holds the losses of all rails and the current outage. The first lost lane creates it.
type lossReport struct {
	losses [MaxRails]railLoss
	outage outage
}

// outage is the period from EventDegraded to EventRecovered.
type outage struct {
	since int64
	// degraded is logged later while pending is set. The log has one record per outage: the record of a lost rail
	// replaces it.
	degraded Event
	pending  bool
	// logged is set once degraded was logged.
	logged bool
}

// degradedAfter delays the record of a lost lane until its rail can no longer be lost in the same outage, in
// nanoseconds. The lanes of a dead rail are lost one after the other, within the timeout of a probe.
const degradedAfter = 5 * attemptMin

// notice queues an event and logs it.
func (c *VirtualCQ) notice(e *Event, level slog.Level, more ...slog.Attr) {
	e.log(level, more...)
	if len(c.events) == maxEvents {
		c.stats.eventsLost.Add(1)
		return
	}
	c.events = append(c.events, *e)
}

// notice reports that a lane went out of service or has returned. If it was the rail's or the VirtualQP's last or
// first one, it reports that too.
func (f *failover) notice(kind EventKind, l *lane, cause error) {
	e := Event{Kind: kind, QP: f.setup.owner, Lane: int(l.index), Rail: int(l.rail), Err: cause}
	e.Sealed = f.setup.sealed(int(l.rail))
	f.setup.cq.notice(&e, slog.LevelDebug)
	if f.lossReport == nil {
		f.setup.owner.mu.Lock()
		f.lossReport = &lossReport{}
		f.setup.owner.mu.Unlock()
	}
	first := kind == EventLaneDown && f.out == 1
	// The leading side takes a lane out of service to return it home. The other side is only informed of it.
	planned := errors.Is(cause, errReturning) || errors.Is(cause, errPeerDown) && l.rail != l.recovery.home
	if first {
		f.lossReport.outage = outage{since: f.clock.now, degraded: e, pending: !planned}
		f.lossReport.outage.degraded.Kind = EventDegraded
	}
	alone := l.role == roleData // all other data lanes of the rail are out of service
	for _, other := range f.setup.lanes {
		if other != l && other.rail == l.rail && other.recovery.state == laneUp {
			alone = false
		}
	}
	if alone && kind == EventLaneDown {
		f.lossReport.railLost(f, &e, planned)
	} else if alone {
		f.lossReport.railRestored(f, &e)
	}
	switch {
	case kind == EventLaneUp && f.out == 0:
		f.lossReport.recovered(f, &e)
	case first:
		e.Kind = EventDegraded
		f.setup.cq.notice(&e, slog.LevelDebug)
	}
}

// railLost reports that a rail has lost its last data lane. planned is set if the lane moves to another rail.
func (t *lossReport) railLost(f *failover, e *Event, planned bool) {
	e.Kind = EventRailDown
	if planned {
		f.setup.cq.notice(e, slog.LevelDebug)
		return
	}
	t.outage.pending = false
	r := &t.losses[e.Rail]
	f.setup.owner.mu.Lock()
	r.down, r.since, r.failover = true, f.clock.now, 0
	r.lost++
	f.setup.owner.mu.Unlock()
	f.setup.cq.notice(e, slog.LevelWarn)
}

// railRestored reports that a rail has a data lane in service, again or for the first time.
func (t *lossReport) railRestored(f *failover, e *Event) {
	e.Kind = EventRailUp
	r := &t.losses[e.Rail]
	if !r.down {
		f.setup.cq.notice(e, slog.LevelDebug)
		return
	}
	f.setup.owner.mu.Lock()
	r.down = false
	r.recovered++
	f.setup.owner.mu.Unlock()
	f.setup.cq.notice(e, slog.LevelInfo, slog.Duration("outage", time.Duration(f.clock.now-r.since)), slog.Duration("failover", time.Duration(r.failover)))
}

// recovered reports that all lanes are back in service.
func (t *lossReport) recovered(f *failover, e *Event) {
	t.logDegraded()
	e.Kind = EventRecovered
	level := slog.LevelDebug
	if t.outage.logged {
		level = slog.LevelInfo
	}
	f.setup.cq.notice(e, level, slog.Duration("outage", time.Duration(f.clock.now-t.outage.since)))
}

// logDegraded logs the first lost lane, unless the record of a lost rail replaces it.
func (t *lossReport) logDegraded() {
	if t.outage.pending {
		t.outage.pending, t.outage.logged = false, true
		t.outage.degraded.log(slog.LevelWarn)
	}
}

// clearLoss clears the loss of a rail that a lane has left, unless the rail is the home of a data lane. The caller
// holds VirtualQP.mu.
func (t *lossReport) clearLoss(lanes []*lane, rail uint8) {
	if t == nil {
		return
	}
	for _, l := range lanes {
		if l.recovery.home == rail {
			return
		}
	}
	t.losses[rail].down = false
}

// failedOver records that the requests of a lost lane have resumed, on another lane or after a rebuild.
func (t *lossReport) failedOver(f *failover, l *lane) {
	if t == nil {
		return
	}
	took, r := f.clock.now-l.recovery.lostAt, &t.losses[l.rail]
	if r.down && took > r.failover {
		f.setup.owner.mu.Lock()
		defer f.setup.owner.mu.Unlock()
		r.total += took - r.failover
		r.failover = took
	}
}

func (e *Event) log(level slog.Level, more ...slog.Attr) {
	to := e.QP.setup.cfg.Log
	if to == nil || !to.Enabled(context.Background(), level) {
		return
	}
	attrs := make([]slog.Attr, 0, 8)
	attrs = append(attrs, slog.Uint64("vqp", e.QP.setup.incarnation))
	if e.Rail >= 0 {
		device := e.QP.setup.rails.rails[e.Rail].name
		attrs = append(attrs, slog.Int("lane", e.Lane), slog.Int("rail", e.Rail), slog.String("device", device), slog.Bool("sealed", e.Sealed))
	}
	if e.Err != nil {
		attrs = append(attrs, slog.Any("cause", e.Err))
	}
	to.LogAttrs(context.Background(), level, e.Kind.String(), append(attrs, more...)...)
}

// Counts are the counters of a lane, a rail or a whole VirtualQP. They are always enabled and cost a few
// additions per physical request.
type Counts struct {
	Fragments uint64 // physical requests accepted by NICs, including records and notifications
	Bytes     uint64 // bytes written or read by these requests
	Doorbells uint64 // posts accepted by NICs, at least in part
	CQEs      uint64 // physical completions of sends and receives
	Refusals  uint64 // posts that a NIC rejected, at least in part
	Stale     uint64 // completions from an earlier generation of a lane
	HighWater int    // maximum number of outstanding requests
}

// counters are the Counts of a lane, written by the goroutine that uses the VirtualQP.
type counters struct {
	fragments, bytes, doorbells, cqes, refusals, stale, highWater counter.Counter
}

func (c *counters) load() Counts {
	return Counts{
		Fragments: c.fragments.Load(), Bytes: c.bytes.Load(), Doorbells: c.doorbells.Load(), CQEs: c.cqes.Load(),
		Refusals: c.refusals.Load(), Stale: c.stale.Load(), HighWater: int(c.highWater.Load()),
	}
}

// add adds other to c. It keeps the higher high-water mark.
func (c *Counts) add(other *Counts) {
	c.Fragments += other.Fragments
	c.Bytes += other.Bytes
	c.Doorbells += other.Doorbells
	c.CQEs += other.CQEs
	c.Refusals += other.Refusals
	c.Stale += other.Stale
	c.HighWater = max(c.HighWater, other.HighWater)
}

// since returns the difference between c and before.
func (c Counts) since(before *Counts) Counts {
	c.Fragments -= before.Fragments
	c.Bytes -= before.Bytes
	c.Doorbells -= before.Doorbells
	c.CQEs -= before.CQEs
	c.Refusals -= before.Refusals
	c.Stale -= before.Stale
	return c
}

// LaneStats are the counters and the state of one lane.
type LaneStats struct {
	// Lane is the index of the lane.
	Lane int
	// Rail is the index of the lane's rail.
	Rail int
	// QPN is the number of the lane's current QP.
	QPN uint32
	// Role is "data", "message" or "notify".
	Role string
	// State is "up" or, while out of service and during recovery, "dying", "gone", "idle", "offered" or
	// "probing".
	State string
	// Generation is the number of earlier QPs of the lane.
	Generation int
	// Deaths is the number of times the lane was lost.
	Deaths uint64
	// Replayed is the number of requests moved to other lanes or retransmitted by the rebuilt lane.
	Replayed uint64
	// Cause is the reason why the lane is out of service. It is nil while the lane is up.
	Cause error
	Counts
}

// MarshalJSON encodes Cause as its text, because errors have no JSON encoding.
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

// RailStats are the summed counters of all lanes on one rail.
type RailStats struct {
	// Rail is the index of the rail.
	Rail int
	// Device is the NIC's name.
	Device string
	// Up is the number of working data lanes on the rail.
	Up int
	// Down is 1 while the rail is lost: all its data lanes are out of service. In a sum, it counts VirtualQPs.
	Down int
	// Lost counts the losses of the rail, Recovered its recoveries.
	Lost, Recovered uint64
	// FailoverTime is the time for which losses of the rail delayed requests, until other lanes or rebuilt ones took
	// them over. Each loss adds its longest delay.
	FailoverTime time.Duration
	// Sealed is set when the rail's packets are encrypted and authenticated (Config.Seal).
	Sealed bool
	Counts
}

// Stats are the counters of a VirtualQP since its creation. Its HighWater counts the user's send
// requests.
type Stats struct {
	Posted uint64 // accepted send requests
	// Completed counts the completed send requests. For a single lane without failover, it counts the
	// reported completions.
	Completed     uint64
	RecvPosted    uint64 // accepted receives of both kinds
	RecvCompleted uint64 // completed receives of both kinds
	Out           int    // lanes out of service
	Deaths        uint64 // losses of lanes
	Replayed      uint64 // requests moved to other lanes or retransmitted by rebuilt lanes
	ControlErrors uint64 // control messages that failed to send or parse
	Counts
	// Lanes are the counters by lane, in lane order. Empty after Close.
	Lanes []LaneStats
	// Rails are the counters by rail, in rail order.
	Rails []RailStats
}

// Stats returns the counters by lane and by rail. It is safe for concurrent use; counters that change
// during the call may be from slightly different moments. After Close, it has no lanes.
func (q *VirtualQP) Stats() Stats {
	send, recv, pass, u := &q.send, &q.recv, &q.pass, &q.setup
	if u.rails == nil {
		return Stats{}
	}
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
		if r := q.failover.lossReport; r != nil {
			r.losses[i].fill(&s.Rails[i])
		}
	}
	for i, l := range u.all {
		v, counts := &l.recovery, l.counts.load()
		s.Lanes = append(s.Lanes, LaneStats{
			Lane: i, Rail: int(l.rail), QPN: l.num, Role: roleNames[l.role], State: v.state.String(), Generation: int(l.generation),
			Deaths: v.deaths, Replayed: v.replayed.Load(), Counts: counts,
		})
		s.Deaths += s.Lanes[i].Deaths
		s.Replayed += s.Lanes[i].Replayed
		if v.state != laneUp {
			s.Out++
			s.Lanes[i].Cause = v.downCause()
		} else if l.role == roleData {
			s.Rails[l.rail].Up++
		}
		s.add(&counts)
		here := counts.since(&v.countsBefore)
		s.Rails[l.rail].add(&here)
	}
	s.HighWater = int(max(send.highWater.Load(), pass.highWater.Load()))
	return s
}

// Add adds the statistics of another VirtualQP, whose rails are the same devices. It skips Lanes. A nil other is
// ignored.
func (s *Stats) Add(other *Stats) {
	if other == nil {
		return
	}
	s.Posted += other.Posted
	s.Completed += other.Completed
	s.RecvPosted += other.RecvPosted
	s.RecvCompleted += other.RecvCompleted
	s.Out += other.Out
	s.Deaths += other.Deaths
	s.Replayed += other.Replayed
	s.ControlErrors += other.ControlErrors
	s.add(&other.Counts)
	for i := range other.Rails {
		from := &other.Rails[i]
		if i == len(s.Rails) {
			s.Rails = append(s.Rails, RailStats{Rail: from.Rail, Device: from.Device, Sealed: from.Sealed})
		}
		to := &s.Rails[i]
		to.Up += from.Up
		to.Down += from.Down
		to.Sealed = to.Sealed && from.Sealed
		to.Lost += from.Lost
		to.Recovered += from.Recovered
		to.FailoverTime += from.FailoverTime
		to.add(&from.Counts)
	}
}

// Past returns the counters of a VirtualQP without the state of its lanes, to be kept after Close.
func (s *Stats) Past() Stats {
	if s == nil {
		return Stats{}
	}
	past := *s
	past.Out, past.Lanes, past.Rails = 0, nil, append([]RailStats(nil), s.Rails...)
	for i := range past.Rails {
		past.Rails[i].Up, past.Rails[i].Down = 0, 0
	}
	return past
}
