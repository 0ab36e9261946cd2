package verbstest

import (
	"fmt"
	"strings"

	"ibverbx/verbs"
)

var eventsTests = []test{
	{"NeverBlocks", eventsNeverBlocks},
	{"CommEst", eventsCommEst},
	{"CommEstByWrite", eventsCommEstByWrite},
	{"AccessError", eventsAccessError},
	{"RequestError", eventsRequestError},
	{"NoneForCompletedErrors", eventsNoneForCompleted},
	{"NotifyWakes", eventsNotifyWakes},
	{"NotifyAlreadyQueued", eventsNotifyQueued},
	{"NotifyReplaced", eventsNotifyReplaced},
	{"NotifyEnds", eventsNotifyEnds},
	{"InOrder", eventsInOrder},
	{"OtherContextHearsNothing", eventsOtherContext},
	{"ClosedQP", eventsClosedQP},
	{"ClosedSRQ", eventsClosedSRQ},
	{"String", eventsString},
}

// eventTrigger raises an event on side B on demand: an SRQ's limit event, which leaves all objects
// usable.
type eventTrigger struct {
	c   *conn
	srq verbs.SRQ
}

func (e *env) newBell() *eventTrigger {
	e.Helper()
	srq, c := e.srqConn(4)
	return &eventTrigger{c: c, srq: srq}
}

// ring consumes the SRQ's only receive; its limit is one.
func (e *env) ring(b *eventTrigger) {
	e.Helper()
	e.postRecv(b.srq, recv(1))
	e.must(b.srq.SetLimit(1), "SetLimit(1)")
	e.carry(b.c, send(2), 1)
}

// raised rings b and returns when the event is queued, without consuming it.
func (e *env) raised(b *eventTrigger, w *verbs.Waker) {
	e.Helper()
	e.ring(b)
	e.waitWoken(w, "an event was queued")
}

// newEventWaker returns a new Waker for B's events. It first removes the queued events, so
// that the Waker starts without a token.
func (e *env) newEventWaker() *verbs.Waker {
	e.Helper()
	e.takeEvents(e.b)
	w := verbs.NewWaker()
	e.must(e.b.ctx.NotifyEvents(w), "NotifyEvents")
	return w
}

// Events never blocks: if the queue or dst is empty, it returns 0 and consumes no event.
func eventsNeverBlocks(e *env) {
	var evs [4]verbs.Event
	if n, err := e.b.ctx.Events(evs[:]); n != 0 || err != nil {
		e.Errorf("Events on an idle context = %d, %v, want 0, nil", n, err)
	}
	b := e.newBell()
	e.ring(b)
	if n, err := e.b.ctx.Events(nil); n != 0 || err != nil {
		e.Errorf("Events into nothing = %d, %v, want 0, nil", n, err)
	}
	e.event(e.b, verbs.EventSRQLimitReached, b.srq)
}

// inRTR returns a connection whose end B is in RTR, and the attributes that move it to RTS.
func (e *env) inRTR() (*conn, verbs.QPAttr) {
	e.Helper()
	c := e.unconnected(connConfig{})
	attr := e.connectAttr(c.b, e.endpoint(c.a))
	e.drive(c.b, attr, verbs.StateRTR)
	e.join(c.a, e.endpoint(c.b))
	return c, attr
}

// The first packet received in RTR establishes communication (ibv_get_async_event(3),
// IBV_EVENT_COMM_EST).
func eventsCommEst(e *env) {
	c, _ := e.inRTR()
	e.message(c, recv(1), send(2))
	e.event(e.b, verbs.EventCommEst, c.b.QP)
}

// A WRITE establishes communication like any packet, although it needs no receive. The event leaves
// the QP in RTR until the user moves it (IBTA 11.6.3.2).
func eventsCommEstByWrite(e *env) {
	c, attr := e.inRTR()
	e.fence(e.rc())
	if e.takeEvent(e.b, verbs.EventCommEst, c.b.QP) {
		e.Error("the event came before a packet did")
	}
	dst, src := e.buf(e.b, 8), e.buf(e.a, 8)
	e.do(c.a, write(1, dst, 0, src.sge(0, 8)))
	e.event(e.b, verbs.EventCommEst, c.b.QP)
	e.inState(c.b, verbs.StateRTR)
	e.must(modify(c.b, attr, verbs.StateRTR, verbs.StateRTS), "Modify from RTR to RTS")
	e.fence(c)
}

// A refused remote access raises an event on the refusing side (ibv_get_async_event(3),
// IBV_EVENT_QP_ACCESS_ERR).
func eventsAccessError(e *env) {
	c, src, dst := e.rc(), e.buf(e.a, 8), e.buf(e.b, 8)
	e.post(c.a, write(1, dst, 1, src.sge(0, 8)))
	e.fails(c.a, 1, e.orRetryExc(verbs.StatusRemAccessErr)...)
	e.event(e.b, verbs.EventQPAccessErr, c.b.QP)
	e.inState(c.b, verbs.StateErr)
	for _, ev := range e.takeEvents(e.a) {
		if ev.Type == verbs.EventQPAccessErr {
			e.Errorf("the requester has the event %v; it has a completion", ev)
		}
	}
}

// An invalid request raises another type of event (ibv_get_async_event(3), IBV_EVENT_QP_REQ_ERR).
func eventsRequestError(e *env) {
	e.needAtomics()
	c, result, target := e.rc(), e.buf(e.a, 8), e.buf(e.b, 16)
	e.post(c.a, fetchAdd(1, target, 4, 1, result.sge(0, 8)))
	e.fails(c.a, 1, e.orRetryExc(verbs.StatusRemInvReqErr)...)
	e.event(e.b, verbs.EventQPReqErr, c.b.QP)
}

// An error reported by a completion raises no event (IBTA 11.6.3: affiliated asynchronous errors
// are errors without a completion).
func eventsNoneForCompleted(e *env) {
	c, src := e.rc(), e.buf(e.a, 8)
	e.postRecv(c.b, recv(1))
	e.post(c.a, send(2, src.sge(0, 8)))
	e.fails(c.b, 1, verbs.StatusLocLenErr)
	e.fails(c.a, 2, e.orRetryExc(verbs.StatusRemInvReqErr)...)
	e.inState(c.b, verbs.StateErr)
	later := e.newBell()
	e.ring(later) // its event follows any event of the error
	e.event(e.b, verbs.EventSRQLimitReached, later.srq)
	for _, s := range []*side{e.a, e.b} {
		for _, ev := range e.takeEvents(s) {
			if ev.QP == c.a.QP || ev.QP == c.b.QP {
				e.Errorf("event %v on %s for an error that has a completion", ev, s.name)
			}
		}
	}
}

// After NotifyEvents, every event wakes.
func eventsNotifyWakes(e *env) {
	w := e.newEventWaker()
	if takeToken(w) && len(e.takeEvents(e.b)) == 0 {
		e.Error("woken without an event")
	}
	b := e.newBell()
	for range 3 {
		e.raised(b, w)
		e.event(e.b, verbs.EventSRQLimitReached, b.srq)
	}
}

// NotifyEvents wakes at once if events are already queued.
func eventsNotifyQueued(e *env) {
	b := e.newBell()
	e.raised(b, e.newEventWaker())
	late := verbs.NewWaker()
	e.must(e.b.ctx.NotifyEvents(late), "NotifyEvents")
	e.waitWoken(late, "an event was queued when NotifyEvents was called")
	e.event(e.b, verbs.EventSRQLimitReached, b.srq)
}

// Only one Waker is active: a new one replaces the old one.
func eventsNotifyReplaced(e *env) {
	b := e.newBell()
	old := e.newEventWaker()
	w := e.newEventWaker()
	e.raised(b, w)
	e.event(e.b, verbs.EventSRQLimitReached, b.srq)
	if takeToken(old) {
		e.Error("the Waker that was replaced was woken")
	}
}

// NotifyEvents(nil) disables wake-ups.
func eventsNotifyEnds(e *env) {
	w := e.newEventWaker()
	e.must(e.b.ctx.NotifyEvents(nil), "NotifyEvents(nil)")
	e.takeEvents(e.b)
	takeToken(w)
	b := e.newBell()
	e.ring(b)
	e.event(e.b, verbs.EventSRQLimitReached, b.srq)
	if takeToken(w) {
		e.Error("woken after NotifyEvents(nil)")
	}
}

// Events are returned in order of occurrence, oldest first, up to the length of dst; the rest stay
// queued, and each event sets only the field of its object.
func eventsInOrder(e *env) {
	bells := make([]*eventTrigger, 5)
	for i := range bells {
		bells[i] = e.newBell()
	}
	w := e.newEventWaker()
	order := []int{3, 0, 4, 1, 2} // not the creation order
	for _, k := range order {
		e.raised(bells[k], w)
	}
	var got []verbs.Event
	for _, room := range []int{0, 1, 1, 2, 9} {
		evs := make([]verbs.Event, room)
		n, err := e.b.ctx.Events(evs)
		if n < min(room, 1) || n > room || err != nil {
			e.Fatalf("Events into %d with %d queued = %d, %v", room, len(bells)-len(got), n, err)
		}
		got = append(got, evs[:n]...)
	}
	got = append(got, e.takeEvents(e.b)...)
	if len(got) != len(bells) {
		e.Fatalf("%d events, want %d: %v", len(got), len(bells), got)
	}
	for i, ev := range got {
		if ev != (verbs.Event{Type: verbs.EventSRQLimitReached, SRQ: bells[order[i]].srq}) {
			e.Errorf("event %d = %+v, want the limit event of SRQ %d of the order %v and nothing else set", i, ev, order[i], order)
		}
	}
}

// An event is delivered only to the context of its object.
func eventsOtherContext(e *env) {
	second := e.again(e.b)
	e.takeEvents(second)
	b := e.newBell()
	e.ring(b)
	e.event(e.b, verbs.EventSRQLimitReached, b.srq)
	for _, ev := range e.takeEvents(second) {
		if subject(ev) != nil {
			e.Errorf("another context of the device has the event %v", ev)
		}
	}
}

// qpEvent raises LAST_WQE_REACHED of a QP on B and returns when it is queued.
func (e *env) qpEvent() *end {
	e.Helper()
	q := e.newBell().c.b
	w := e.newEventWaker()
	e.move(q, verbs.StateErr)
	e.waitWoken(w, "LAST_WQE_REACHED was queued")
	return q
}

// Closing a QP discards its events: no later call returns one (ibv_destroy_qp(3): events that were
// not taken are dropped).
func eventsClosedQP(e *env) {
	q, other := e.qpEvent(), e.newBell()
	e.must(q.Close(), "Close of a QP with an event")
	e.ring(other)
	e.event(e.b, verbs.EventSRQLimitReached, other.srq) // follows any event of the QP
	if e.takeEvent(e.b, verbs.EventLastWQEReached, q.QP) {
		e.Error("an event of a closed QP was delivered")
	}
}

// Closing an SRQ discards its events.
func eventsClosedSRQ(e *env) {
	b, other := e.newBell(), e.newBell()
	e.raised(b, e.newEventWaker())
	e.must(b.c.b.Close(), "Close of the QP")
	e.must(b.srq.Close(), "Close of an SRQ with an event")
	e.ring(other)
	e.event(e.b, verbs.EventSRQLimitReached, other.srq)
	if e.takeEvent(e.b, verbs.EventSRQLimitReached, b.srq) {
		e.Error("an event of a closed SRQ was delivered")
	}
}

// The string of an event names the event, as ibv_event_type_str(3) does, and its QP.
func eventsString(e *env) {
	q := e.qpEvent()
	var evs [1]verbs.Event
	if n, err := e.b.ctx.Events(evs[:]); n != 1 || err != nil || evs[0].QP != q.QP || evs[0].SRQ != nil {
		e.Fatalf("Events = %d, %v, %+v, want LAST_WQE_REACHED of the QP", n, err, evs[0])
	}
	text := evs[0].String()
	if !strings.Contains(text, verbs.EventLastWQEReached.String()) || !strings.Contains(text, fmt.Sprintf("%x", q.Num())) {
		e.Errorf("String = %q, want %q and QP %#x in it", text, verbs.EventLastWQEReached, q.Num())
	}
}
