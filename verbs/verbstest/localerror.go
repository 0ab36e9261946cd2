package verbstest

import "ibverbx/verbs"

var localErrorTests = []test{
	{"SendBadLKey", func(e *env) { e.localCases(verbs.OpSend) }},
	{"WriteBadLKey", func(e *env) { e.localCases(verbs.OpRDMAWrite) }},
	{"ReadBadLKey", func(e *env) { e.localCases(verbs.OpRDMARead) }},
	{"ReadIntoReadOnly", localReadOnlyRead},
	{"AtomicIntoReadOnly", localReadOnlyAtomic},
	{"SecondElementBad", localSecondElement},
	{"ReceiveBadLKey", localReceiveBad},
	{"ReceiveTooSmall", localReceiveTooSmall},
	{"ReceiveWithoutBuffer", localReceiveWithoutBuffer},
	{"EarlierRequestsSucceed", localEarlierSucceed},
}

// badLocal is an invalid reference to local memory.
type badLocal struct {
	name string
	sge  func(e *env, s *side) verbs.SGE
}

// badLocals all result in LOC_PROT_ERR (IBTA 11.6.2, local protection error).
var badLocals = []badLocal{
	{"Key", func(e *env, s *side) verbs.SGE {
		sge := e.buf(s, 64).sge(0, 64)
		sge.LKey ^= 0x5a5a5a5a
		return sge
	}},
	{"PastEnd", func(e *env, s *side) verbs.SGE { return e.buf(s, 64).sge(1, 64) }},
	{"BeforeStart", func(e *env, s *side) verbs.SGE { return e.buf(s, 64).sge(-1, 64) }},
	{"OtherPD", func(e *env, s *side) verbs.SGE { return e.bufWith(e.newPD(s), 64, verbs.AccessAll).sge(0, 64) }},
	{"Deregistered", func(e *env, s *side) verbs.SGE {
		b := e.buf(s, 64)
		e.must(b.mr.Close(), "Close")
		return b.sge(0, 64)
	}},
}

// failsLocally posts bad and two more requests. The first must fail on this side and the others are
// flushed. The peer is not affected, unless bad is a READ or an atomic: its memory is checked when
// the response arrives, and by then the following SEND may have arrived (IBTA 9.5).
func (e *env) failsLocally(c *conn, bad verbs.SendWR) {
	e.Helper()
	bad.WRID = 1
	e.postRecv(c.b, recv(11))
	e.post(c.a, bad, send(2), silent(send(3)))
	e.breaks(c.a, []verbs.Status{verbs.StatusLocProtErr}, 1, 2, 3)
	e.inState(c.b, verbs.StateRTS)
	if bad.Opcode < verbs.OpRDMARead {
		e.expectEmpty(c.b.cq)
	}
}

// A request on local memory without permission fails locally, and the peer does not notice.
func (e *env) localCases(op verbs.Opcode) {
	for _, tt := range badLocals {
		e.sub(tt.name, func(e *env) {
			e.failsLocally(e.rc(), oneSided(op, 1, e.buf(e.b, 64), 0, tt.sge(e, e.a)))
		})
	}
}

// The target of a READ needs local write access.
func localReadOnlyRead(e *env) {
	c, src := e.rc(), e.buf(e.b, 64)
	dst := e.bufWith(e.a.pd, 64, verbs.AccessRemoteRead)
	dst.paint()
	e.failsLocally(c, read(1, src, 0, dst.sge(0, 64)))
	e.untouched(dst)
}

// The result buffer of an atomic needs local write access.
func localReadOnlyAtomic(e *env) {
	e.needAtomics()
	c, target := e.rc(), e.buf(e.b, 64)
	result := e.bufWith(e.a.pd, 64, verbs.AccessRemoteRead)
	result.paint()
	e.failsLocally(c, fetchAdd(1, target, 0, 1, result.sge(0, 8)))
	e.untouched(result)
}

// Every element is checked, not just the first.
func localSecondElement(e *env) {
	if e.sgeLimit() < 2 {
		e.Skip("the device takes one element")
	}
	c := e.conn(connConfig{sges: 2})
	src, dst := e.buf(e.a, 64), e.buf(e.b, 64)
	e.failsLocally(c, write(1, dst, 0, src.sge(0, 8), src.sge(60, 8)))
}

// A receive on memory without permission fails when a message arrives, and the sender gets an
// operational error (IBTA 9.9.3, responder errors).
func localReceiveBad(e *env) {
	cases := append([]badLocal{{"ReadOnly", func(e *env, s *side) verbs.SGE {
		return e.bufWith(s.pd, 64, verbs.AccessRemoteRead).sge(0, 64)
	}}}, badLocals...)
	for _, tt := range cases {
		e.sub(tt.name, func(e *env) {
			e.receiveFails(64, verbs.StatusLocProtErr, verbs.StatusRemOpErr, tt.sge(e, e.b))
		})
	}
}

// receiveFails sends n bytes to a receive with elements that cannot hold them. The receive
// fails with status local, the send with status remote. Later requests are flushed.
func (e *env) receiveFails(n int, local, remote verbs.Status, sges ...verbs.SGE) {
	e.Helper()
	c, src := e.rc(), e.buf(e.a, n)
	e.postRecv(c.b, recv(11, sges...), recv(12))
	e.post(c.a, send(1, src.sge(0, n)), send(2))
	e.breaks(c.b, []verbs.Status{local}, 11, 12)
	e.breaks(c.a, e.orRetryExc(remote), 1, 2)
}

// tooLong sends n bytes to a shorter receive: the receiver gets a length error, the sender an
// invalid request error (IBTA 9.9.3 and 11.6.2).
func (e *env) tooLong(n int, sges ...verbs.SGE) {
	e.Helper()
	e.receiveFails(n, verbs.StatusLocLenErr, verbs.StatusRemInvReqErr, sges...)
}

// A message longer than its receive is an error on both sides, and bytes beyond the receive's
// buffer are never written.
func localReceiveTooSmall(e *env) {
	for name, size := range map[string]int{"OneByte": 1, "OnePacket": 100, "ManyPackets": 30000} {
		e.sub(name, func(e *env) {
			dst := e.painted(e.b, size+64)
			e.tooLong(size+1, dst.sge(0, size))
			e.guarded(dst, size, size+64)
		})
	}
}

// A message into a receive without a buffer is an error on both sides.
func localReceiveWithoutBuffer(e *env) { e.tooLong(1) }

// Requests posted before a failing one are executed and succeed.
func localEarlierSucceed(e *env) {
	c, src, dst := e.rc(), e.filled(e.a, 1, 64), e.painted(e.b, 128)
	e.post(c.a, write(1, dst, 0, src.sge(0, 64)), write(2, dst, 0, src.sge(32, 64)), write(3, dst, 64, src.sge(0, 64)))
	e.done(c.a, 1, verbs.WCRDMAWrite)
	e.fails(c.a, 2, verbs.StatusLocProtErr)
	e.flushed(c.a.cq, c.a, 3)
	e.holds(dst, 0, payload(1, 64))
}
