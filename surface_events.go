package ibverbx

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
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
