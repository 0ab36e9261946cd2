package verbstest

import "ibverbx/verbs"

var eventsTests = []test{
	{"NeverBlocks", eventsNeverBlocks},
	{"CommEst", eventsCommEst},
	{"AccessError", eventsAccessError},
	{"RequestError", eventsRequestError},
	{"NoneForCompletedErrors", eventsNoneForCompleted},
	{"NotifyWakes", eventsNotifyWakes},
	{"NotifyAlreadyQueued", eventsNotifyQueued},
	{"NotifyEnds", eventsNotifyEnds},
	{"InOrder", eventsInOrder},
	{"OtherContextHearsNothing", eventsOtherContext},
}

// accessError makes B refuse a WRITE on a connection of its own and returns that.
func (e *env) accessError() *conn {
	e.Helper()
	c, src, dst := e.rc(), e.buf(e.a, 8), e.buf(e.b, 8)
	e.post(c.a, write(1, dst, 1, src.sge(0, 8)))
	e.fails(c.a, 1, e.answer(verbs.StatusRemAccessErr)...)
	return c
}

// Events returns at once when there is none, and takes none if there is no room.
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

// The first packet that a QP gets in RTR establishes communication
// (ibv_get_async_event(3), IBV_EVENT_COMM_EST).
func eventsCommEst(e *env) {
	c := e.unconnected(connConfig{})
	e.drive(c.b, e.connectAttr(c.b, e.endpoint(c.a)), verbs.StateRTR)
	e.join(c.a, e.endpoint(c.b))
	e.message(c, recv(1), send(2))
	e.event(e.b, verbs.EventCommEst, c.b.QP)
}

// A remote access that is not allowed is an event on the side that refused it
// (ibv_get_async_event(3), IBV_EVENT_QP_ACCESS_ERR).
func eventsAccessError(e *env) {
	c := e.accessError()
	e.event(e.b, verbs.EventQPAccessErr, c.b.QP)
	e.inState(c.b, verbs.StateErr)
	for _, ev := range e.takeEvents(e.a) {
		if ev.Type == verbs.EventQPAccessErr {
			e.Errorf("the requester has the event %v; it has a completion", ev)
		}
	}
}

// A request that cannot be is another event (ibv_get_async_event(3),
// IBV_EVENT_QP_REQ_ERR).
func eventsRequestError(e *env) {
	e.needAtomics()
	c, result, target := e.rc(), e.buf(e.a, 8), e.buf(e.b, 16)
	e.post(c.a, fetchAdd(1, target, 4, 1, result.sge(0, 8)))
	e.fails(c.a, 1, e.answer(verbs.StatusRemInvReqErr)...)
	e.event(e.b, verbs.EventQPReqErr, c.b.QP)
}

// An error that has a completion needs no event (IBTA 11.6.3: affiliated asynchronous
// errors are those without a completion).
func eventsNoneForCompleted(e *env) {
	c, src := e.rc(), e.buf(e.a, 8)
	e.postRecv(c.b, recv(1))
	e.post(c.a, send(2, src.sge(0, 8)))
	e.fails(c.b, 1, verbs.StatusLocLenErr)
	e.fails(c.a, 2, e.answer(verbs.StatusRemInvReqErr)...)
	e.inState(c.b, verbs.StateErr)
	later := e.newBell()
	e.ring(later) // its event comes behind any that the error had
	e.event(e.b, verbs.EventSRQLimitReached, later.srq)
	for _, s := range []*side{e.a, e.b} {
		for _, ev := range e.takeEvents(s) {
			if ev.QP == c.a.QP || ev.QP == c.b.QP {
				e.Errorf("event %v on %s for an error that has a completion", ev, s.name)
			}
		}
	}
}

// NotifyEvents makes every event wake.
func eventsNotifyWakes(e *env) {
	w := verbs.NewWaker()
	e.must(e.b.ctx.NotifyEvents(w), "NotifyEvents")
	if tokenThere(w) && len(e.takeEvents(e.b)) == 0 {
		e.Error("woken without an event")
	}
	b := e.newBell()
	for range 3 {
		e.raised(b, w)
		e.event(e.b, verbs.EventSRQLimitReached, b.srq)
	}
}

// If events are there already NotifyEvents wakes at once.
func eventsNotifyQueued(e *env) {
	w := verbs.NewWaker()
	e.must(e.b.ctx.NotifyEvents(w), "NotifyEvents")
	b := e.newBell()
	e.raised(b, w)
	late := verbs.NewWaker()
	e.must(e.b.ctx.NotifyEvents(late), "NotifyEvents")
	e.woken(late, "an event was queued when NotifyEvents was called")
	e.event(e.b, verbs.EventSRQLimitReached, b.srq)
}

// NotifyEvents(nil) ends the waking.
func eventsNotifyEnds(e *env) {
	w := verbs.NewWaker()
	e.must(e.b.ctx.NotifyEvents(w), "NotifyEvents")
	e.must(e.b.ctx.NotifyEvents(nil), "NotifyEvents(nil)")
	e.takeEvents(e.b)
	tokenThere(w)
	b := e.newBell()
	e.ring(b)
	e.event(e.b, verbs.EventSRQLimitReached, b.srq)
	if tokenThere(w) {
		e.Error("woken after NotifyEvents(nil)")
	}
}

// Events come in the order in which things happened, however few are taken at a time.
func eventsInOrder(e *env) {
	bells := make([]*bell, 5)
	for i := range bells {
		bells[i] = e.newBell()
	}
	w := e.listen()
	order := []int{3, 0, 4, 1, 2} // not that in which the objects were made
	for _, k := range order {
		e.raised(bells[k], w)
	}
	for i, k := range order {
		var one [1]verbs.Event
		n, err := e.b.ctx.Events(one[:])
		if n != 1 || err != nil || one[0].Type != verbs.EventSRQLimitReached || one[0].SRQ != bells[k].srq {
			e.Fatalf("event %d = %d, %v, %v, want that of SRQ %d of the order %v", i, n, err, one[0], k, order)
		}
	}
}

// Events belong to the context of the object that they are about.
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
