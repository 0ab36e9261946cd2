package verbstest

import (
	"fmt"
	"strings"

	"ibverbx/verbs"
)

var eventRuleTests = []test{
	{"CommEstByWrite", eventsCommEstByWrite},
	{"NotifyReplaced", eventsNotifyReplaced},
	{"SmallDst", eventsSmallDst},
	{"ClosedQP", eventsClosedQP},
	{"ClosedSRQ", eventsClosedSRQ},
	{"String", eventsString},
}

// bell raises an event on side B whenever a test asks for one: the limit event of an
// SRQ, because that leaves everything usable.
type bell struct {
	c   *conn
	srq verbs.SRQ
}

func (e *env) newBell() *bell {
	e.Helper()
	e.needSRQ()
	srq := e.newSRQ(e.b, verbs.SRQConfig{MaxWR: 4})
	return &bell{c: e.conn(connConfig{srqB: srq}), srq: srq}
}

// ring takes the only receive of the SRQ, whose limit is one.
func (e *env) ring(b *bell) {
	e.Helper()
	e.postRecv(b.srq, recv(1))
	e.must(b.srq.SetLimit(1), "SetLimit(1)")
	e.carry(b.c, send(2), 1)
}

// raised rings b and returns when the event is queued, without taking it.
func (e *env) raised(b *bell, w *verbs.Waker) {
	e.Helper()
	e.ring(b)
	e.woken(w, "an event was queued")
}

// listen makes a new Waker that of B's events. What was queued before is taken first,
// so that the Waker has no token.
func (e *env) listen() *verbs.Waker {
	e.Helper()
	e.takeEvents(e.b)
	w := verbs.NewWaker()
	e.must(e.b.ctx.NotifyEvents(w), "NotifyEvents")
	return w
}

// A WRITE, which needs no receive, establishes communication like any packet. The event
// leaves the QP in RTR, from where the user takes it on (IBTA 11.6.3.2).
func eventsCommEstByWrite(e *env) {
	c := e.unconnected(connConfig{})
	attr := e.connectAttr(c.b, e.endpoint(c.a))
	e.drive(c.b, attr, verbs.StateRTR)
	e.join(c.a, e.endpoint(c.b))
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

// There is one Waker: a new one takes the place of the old one.
func eventsNotifyReplaced(e *env) {
	b := e.newBell()
	old := e.listen()
	w := e.listen()
	e.raised(b, w)
	e.event(e.b, verbs.EventSRQLimitReached, b.srq)
	if tokenThere(old) {
		e.Error("the Waker that was replaced was woken")
	}
}

// Events takes as many as there is room for, oldest first, keeps the rest, and sets the
// field of the object that an event is about and no other.
func eventsSmallDst(e *env) {
	const count = 5
	bells := make([]*bell, count)
	for i := range bells {
		bells[i] = e.newBell()
	}
	w := e.listen()
	for _, b := range bells {
		e.raised(b, w)
	}
	var got []verbs.Event
	for _, room := range []int{0, 1, 2, 9} {
		evs := make([]verbs.Event, room)
		n, err := e.b.ctx.Events(evs)
		if n < min(room, 1) || n > room || err != nil {
			e.Fatalf("Events into %d with %d queued = %d, %v", room, count-len(got), n, err)
		}
		got = append(got, evs[:n]...)
	}
	got = append(got, e.takeEvents(e.b)...)
	if len(got) != count {
		e.Fatalf("%d events, want %d: %v", len(got), count, got)
	}
	for i, ev := range got {
		if ev.Type != verbs.EventSRQLimitReached || ev.SRQ != bells[i].srq || ev.QP != nil || ev.CQ != nil || ev.Port != 0 {
			e.Errorf("event %d = %+v, want the limit event of SRQ %d and nothing else set", i, ev, i)
		}
	}
}

// qpEvent raises LAST_WQE_REACHED of a QP on B and returns when it is queued.
func (e *env) qpEvent() *end {
	e.Helper()
	q := e.newBell().c.b
	w := e.listen()
	e.toErr(q)
	e.woken(w, "LAST_WQE_REACHED was queued")
	return q
}

// Close of a QP takes its events with it: nobody is handed a QP that is closed
// (ibv_destroy_qp(3): events that were not taken are dropped).
func eventsClosedQP(e *env) {
	q, other := e.qpEvent(), e.newBell()
	e.must(q.Close(), "Close of a QP with an event")
	e.ring(other)
	e.event(e.b, verbs.EventSRQLimitReached, other.srq) // comes after any of the QP
	if e.takeEvent(e.b, verbs.EventLastWQEReached, q.QP) {
		e.Error("an event of a closed QP was delivered")
	}
}

// So does Close of an SRQ.
func eventsClosedSRQ(e *env) {
	b, other := e.newBell(), e.newBell()
	e.raised(b, e.listen())
	e.must(b.c.b.Close(), "Close of the QP")
	e.must(b.srq.Close(), "Close of an SRQ with an event")
	e.ring(other)
	e.event(e.b, verbs.EventSRQLimitReached, other.srq)
	if e.takeEvent(e.b, verbs.EventSRQLimitReached, b.srq) {
		e.Error("an event of a closed SRQ was delivered")
	}
}

// An event says what happened, in the words of ibv_event_type_str(3), and to which QP.
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
