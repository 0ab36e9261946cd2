package verbstest

import "ibverbx/verbs"

// Modify from RTS to RTS changes the attributes that are modifiable in RTS (ibv_modify_qp(3)).
func stateModifyInPlace(e *env) {
	c := e.rc()
	mask := verbs.AttrState | verbs.AttrCurState | verbs.AttrMinRNRTimer | verbs.AttrAccess
	want := verbs.QPAttr{State: verbs.StateRTS, CurState: verbs.StateRTS, MinRNRTimer: 5, Access: verbs.AccessRemoteRead}
	e.must(c.a.Modify(want, mask), "Modify from RTS to RTS")
	got := e.query(c.a)
	if got.State != verbs.StateRTS || got.MinRNRTimer != 5 || got.Access&verbs.AccessAll&^verbs.AccessLocalWrite != verbs.AccessRemoteRead {
		e.Errorf("after Modify: state %v, min RNR timer %d, access %#x, want RTS, 5, %#x",
			got.State, got.MinRNRTimer, uint32(got.Access), uint32(verbs.AccessRemoteRead))
	}
	// B no longer allows WRITEs, but still READs.
	dst, local := e.filled(e.a, 1, 64), e.buf(e.b, 64)
	e.do(c.b, read(1, dst, 0, local.sge(0, 64)))
	e.same(local.bytes(), payload(1, 64))
	local.paint()
	e.post(c.b, write(2, dst, 0, local.sge(0, 64)))
	e.fails(c.b, 2, e.orRetryExc(verbs.StatusRemInvReqErr, verbs.StatusRemAccessErr)...)
	e.same(dst.bytes(), payload(1, 64))
}

// Posting in RESET fails (ibv_post_send(3), ibv_post_recv(3)).
func statePostInReset(e *env) {
	e.types(func(e *env, fresh func() *end, _ verbs.QPAttr) {
		q := fresh()
		e.rejectsPost("PostSend in RESET", 0, verbs.ErrState)(q.PostSend([]verbs.SendWR{send(1), send(2)}))
		e.rejectsPost("PostRecv in RESET", 0, verbs.ErrState)(q.PostRecv([]verbs.RecvWR{recv(1)}))
		e.expectEmpty(q.cq)
	})
}

// Sends are accepted in RTS but refused in INIT and RTR (IBTA 10.3.1).
func statePostSendBeforeRTS(e *env) {
	e.types(func(e *env, fresh func() *end, attr verbs.QPAttr) {
		for _, s := range []verbs.QPState{verbs.StateInit, verbs.StateRTR} {
			q := fresh()
			e.drive(q, attr, s)
			e.rejectsPost("PostSend in "+s.String(), 0, verbs.ErrState)(q.PostSend([]verbs.SendWR{send(1), send(2)}))
			e.expectEmpty(q.cq)
		}
	})
}

// Receives can be posted in INIT, before the peer is known, and are used later.
func statePostRecvInInit(e *env) {
	c := e.unconnected(connConfig{})
	dst, src := e.painted(e.b, 64), e.filled(e.a, 9, 64)
	e.must(verbs.InitQP(c.b.QP, e.b.port), "InitQP")
	e.inState(c.b, verbs.StateInit)
	e.postRecv(c.b, recv(1, dst.sge(0, 20)), recv(2, dst.sge(20, 20)))
	e.connect(c, connConfig{})
	e.do(c.a, send(3, src.sge(0, 20)), send(4, src.sge(20, 20)))
	e.gets(c.b, 1, 20)
	e.gets(c.b, 2, 20)
	e.holds(dst, 0, payload(9, 64)[:40])
}

// A QP in RTR receives and responds, and can enter RTS afterwards.
func stateReceiveInRTR(e *env) {
	c, attr := e.inRTR()
	dst, src := e.buf(e.b, 64), e.filled(e.a, 2, 64)
	e.postRecv(c.b, recv(1, dst.sge(0, 32)))
	e.do(c.a, send(2, src.sge(0, 32)), write(3, dst, 32, src.sge(32, 32)))
	e.gets(c.b, 1, 32)
	e.same(dst.bytes(), payload(2, 64))
	e.inState(c.b, verbs.StateRTR)
	e.must(modify(c.b, attr, verbs.StateRTR, verbs.StateRTS), "Modify from RTR to RTS")
	e.postRecv(c.a, recv(4))
	e.do(c.b, send(5))
	e.gets(c.a, 4, 0)
}

// A failed QP can be reused after RESET.
func stateErrResetReuse(e *env) {
	c := e.rc()
	for round := range uint64(3) {
		e.fence(c)
		e.moveBoth(c, verbs.StateErr)
		e.moveBoth(c, verbs.StateReset)
		e.connect(c, connConfig{})
		src, dst := e.filled(e.a, round, 32), e.buf(e.b, 32)
		e.do(c.a, write(round, dst, 0, src.sge(0, 32)))
		e.same(dst.bytes(), payload(round, 32))
	}
}

var sqdTests = []test{
	{"DrainedEvent", sqdDrainedEvent},
	{"HoldsSends", sqdHoldsSends},
	{"ReceivesGoOn", sqdReceivesGoOn},
	{"Refused", sqdRefused},
}

// toSQD drains q's send queue and waits for the event.
func (e *env) toSQD(q *end) {
	e.Helper()
	attr := verbs.QPAttr{State: verbs.StateSQD, SQDNotify: true}
	e.must(q.Modify(attr, verbs.AttrState|verbs.AttrSQDNotify), "Modify to SQD")
	e.event(q.side, verbs.EventSQDrained, q.QP)
	e.inState(q, verbs.StateSQD)
}

// When the send queue is drained, all started requests have completed, as a prefix of the queue,
// and the rest run after RTS (IBTA 10.3.1.5).
func sqdDrainedEvent(e *env) {
	e.needCap(verbs.CapSQD, "CapSQD")
	const size, count = 1 << 14, 16
	c := e.rc()
	src, dst := e.filled(e.a, 1, count*size), e.buf(e.b, count*size)
	for id := range count {
		e.post(c.a, write(uint64(id), dst, id*size, src.sge(id*size, size)))
	}
	e.toSQD(c.a)
	done := make([]verbs.WC, count)
	n, err := c.a.cq.Poll(done)
	e.must(err, "Poll after the event")
	for id, wc := range done[:n] {
		e.ok(wc, c.a, uint64(id), verbs.WCRDMAWrite)
	}
	e.expectEmpty(c.a.cq)
	e.move(c.a, verbs.StateRTS)
	e.doneFrom(c.a, uint64(n), count-n, verbs.WCRDMAWrite)
	e.same(dst.bytes(), payload(1, count*size))
}

// Sends posted in SQD wait for RTS (IBTA 10.3.1.5).
func sqdHoldsSends(e *env) {
	e.needCap(verbs.CapSQD, "CapSQD")
	c, other := e.rc(), e.rc()
	src, dst := e.filled(e.a, 1, 64), e.painted(e.b, 64)
	e.toSQD(c.a)
	e.post(c.a, write(1, dst, 0, src.sge(0, 64)))
	e.fence(other)
	e.expectEmpty(c.a.cq)
	e.untouched(dst)
	e.move(c.a, verbs.StateRTS)
	e.done(c.a, 1, verbs.WCRDMAWrite)
	e.same(dst.bytes(), payload(1, 64))
}

// SQD does not affect the receive side.
func sqdReceivesGoOn(e *env) {
	e.needCap(verbs.CapSQD, "CapSQD")
	c := e.rc()
	e.toSQD(c.a)
	e.postRecv(c.a, recv(1))
	e.do(c.b, sendImm(2, 77))
	e.getsImm(c.a, 1, verbs.WCRecv, 0, 77)
}

// A device without SQD refuses it, and the QP remains usable.
func sqdRefused(e *env) {
	if e.a.attr.Capabilities&verbs.CapSQD != 0 {
		e.Skip("the device has CapSQD")
	}
	c := e.rc()
	if err := c.a.Modify(verbs.QPAttr{State: verbs.StateSQD}, verbs.AttrState); err == nil {
		e.Error("Modify to SQD without CapSQD = nil, want an error")
	}
	e.inState(c.a, verbs.StateRTS)
	e.fence(c)
}
