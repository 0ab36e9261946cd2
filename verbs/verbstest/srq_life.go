package verbstest

import "ibverbx/verbs"

// takeReceives sends count messages over c, each of which takes a receive with wr_id 1.
func (e *env) takeReceives(c *conn, count int) {
	e.Helper()
	for range count {
		e.carry(c, send(1), 1)
	}
}

// noLimitEvent fails the test if there is a limit event of srq.
func (e *env) noLimitEvent(srq verbs.SRQ, when string) {
	e.Helper()
	if e.takeEvent(e.b, verbs.EventSRQLimitReached, srq) {
		e.Errorf("a limit event %s, want none", when)
	}
}

// The limit event comes once when fewer receives are left than the limit says, and
// again only when the limit was set again (ibv_modify_srq(3)).
func srqLimitEvent(e *env) {
	srq, c := e.srqConn(16)
	give := func(count int) {
		e.Helper()
		for range count {
			e.postRecv(srq, recv(1))
		}
	}
	give(8)
	e.takeReceives(c, 3) // not armed
	e.must(srq.SetLimit(4), "SetLimit")
	e.takeReceives(c, 1)
	e.noLimitEvent(srq, "with as many receives left as the limit says")
	e.takeReceives(c, 1)
	e.event(e.b, verbs.EventSRQLimitReached, srq)
	e.takeReceives(c, 3) // not armed any more
	give(8)
	e.must(srq.SetLimit(8), "SetLimit again")
	e.takeReceives(c, 1)
	e.event(e.b, verbs.EventSRQLimitReached, srq)
	give(8)
	e.must(srq.SetLimit(3), "SetLimit")
	e.must(srq.SetLimit(0), "SetLimit(0)")
	e.takeReceives(c, 14)
	give(4)
	e.must(srq.SetLimit(5), "SetLimit to what is there")
	e.takeReceives(c, 1)
	e.event(e.b, verbs.EventSRQLimitReached, srq)
	e.noLimitEvent(srq, "more than limits that were set")
}

// SRQConfig.Limit arms the event from the start. A new SRQ has fewer receives than
// that, so the event may come at once or when the limit is reached from above.
func srqLimitByConfig(e *env) {
	srq := e.newSRQ(e.b, verbs.SRQConfig{MaxWR: 8, Limit: 2})
	c := e.onSRQ(srq)
	e.postRecv(srq, recv(1), recv(1), recv(1))
	e.takeReceives(c, 2)
	e.event(e.b, verbs.EventSRQLimitReached, srq)
}

// A limit that the queue cannot hold is refused and changes nothing (ibv_modify_srq(3)).
func srqLimitRefused(e *env) {
	srq, c := e.srqConn(8)
	e.postRecv(srq, recv(1), recv(1), recv(1))
	e.must(srq.SetLimit(2), "SetLimit(2)")
	e.refused("SetLimit(-1)", srq.SetLimit(-1), verbs.ErrInvalid)
	e.refused("SetLimit(MaxWR+1)", srq.SetLimit(srq.MaxWR()+1), verbs.ErrInvalid, verbs.ErrLimit)
	e.takeReceives(c, 1)
	e.noLimitEvent(srq, "with 2 receives left and a limit of 2")
	e.takeReceives(c, 1)
	e.event(e.b, verbs.EventSRQLimitReached, srq)
	e.must(srq.SetLimit(srq.MaxWR()), "SetLimit(MaxWR)")
}

// When a QP with an SRQ is in the error state and takes no more receives an event says
// so; the receives in the SRQ stay for the others (IBTA 11.6.3).
func srqLastWQE(e *env) {
	srq, c := e.srqConn(8)
	other := e.onSRQ(srq)
	e.postRecv(srq, recv(10), recv(11))
	e.move(c.b, verbs.StateErr)
	e.event(e.b, verbs.EventLastWQEReached, c.b.QP)
	e.carry(other, send(1), 10)
	e.carry(other, send(2), 11)
	e.none(c.b.cq, other.b.cq)
}

// A QP that fails for what its peer asked tells that it takes no more receives, once,
// and the receives stay (IBTA 11.6.3.2, last WQE reached).
func srqLastWQERemote(e *env) {
	srq, c := e.srqConn(8)
	other := e.onSRQ(srq)
	local, target := e.buf(e.a, 64), e.buf(e.b, 64)
	e.postRecv(srq, recv(10), recv(11))
	e.post(c.a, write(1, target, 1, local.sge(0, 64)))
	e.fails(c.a, 1, e.answer(verbs.StatusRemAccessErr)...)
	e.inState(c.b, verbs.StateErr)
	e.event(e.b, verbs.EventLastWQEReached, c.b.QP)
	e.move(c.b, verbs.StateErr) // it is there already
	e.carry(other, send(1), 10)
	e.carry(other, send(2), 11)
	e.none(c.b.cq)
	if e.takeEvent(e.b, verbs.EventLastWQEReached, c.b.QP) {
		e.Error("a second event for the last WQE")
	}
}

// A message that does not fit fails one receive and one connection.
func srqFailure(e *env) {
	srq, c := e.srqConn(8)
	other, src, dst := e.onSRQ(srq), e.buf(e.a, 64), e.buf(e.b, 64)
	e.postRecv(srq, recv(11, dst.sge(0, 8)), recv(12, dst.sge(8, 8)))
	e.post(c.a, send(1, src.sge(0, 9)))
	e.fails(c.b, 11, verbs.StatusLocLenErr)
	e.fails(c.a, 1, e.answer(verbs.StatusRemInvReqErr)...)
	e.inState(c.b, verbs.StateErr)
	e.event(e.b, verbs.EventLastWQEReached, c.b.QP)
	e.carry(other, send(2, src.sge(0, 8)), 12)
}

// The receives of an SRQ outlive a QP that is closed, and serve QPs made later.
func srqSurviveClose(e *env) {
	srq, c := e.srqConn(8)
	e.postRecv(srq, recv(10), recv(11), recv(12))
	e.carry(c, send(1), 10)
	e.must(c.b.Close(), "Close of a QP on an SRQ")
	later := e.onSRQ(srq)
	e.carry(later, send(2), 11)
	e.carry(later, send(3), 12)
	e.none(c.b.cq)
}

// Receives whose completions go away with their QP do not take places in the SRQ
// forever: as often as that happens, there is room for MaxWR receives.
func srqClosePlaces(e *env) {
	srq := e.newSRQ(e.b, verbs.SRQConfig{MaxWR: 4})
	for range 4 {
		c := e.onSRQ(srq)
		e.stock(srq, srq.MaxWR())
		for i := range uint64(srq.MaxWR()) {
			e.do(c.a, send(i))
		}
		// The peer has acknowledged all, so all the receives were taken. One
		// completion is polled, the others are discarded by Close.
		e.gets(c.b, 0, 0)
		e.must(c.b.Close(), "Close of a QP with completions")
		e.none(c.b.cq)
	}
}

// An SRQ cannot be closed under its QPs, goes on after the attempt, and can be closed
// when the last one is gone, with receives in it (ibv_destroy_srq(3)).
func srqCloseBusy(e *env) {
	srq, first := e.srqConn(8)
	second := e.onSRQ(srq)
	e.postRecv(srq, recv(10), recv(11), recv(12))
	for i, c := range []*conn{first, second} {
		e.refused("Close of an SRQ in use", srq.Close(), verbs.ErrBusy)
		e.carry(c, sendImm(1, 3), uint64(10+i))
		e.must(c.b.Close(), "Close of a QP")
	}
	e.must(srq.Close(), "Close of an SRQ that has no QP any more")
	e.srqGone(srq)
	e.none(first.b.cq, second.b.cq)
}
