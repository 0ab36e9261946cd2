package ibverbx

import (
	"context"
	"fmt"
	"log/slog"
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
