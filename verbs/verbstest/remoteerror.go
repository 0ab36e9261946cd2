package verbstest

import (
	"slices"

	"ibverbx/verbs"
)

var remoteErrorTests = []test{
	{"Write", func(e *env) { e.remoteCases(verbs.OpRDMAWrite) }},
	{"WriteWithImm", func(e *env) { e.remoteCases(verbs.OpRDMAWriteWithImm) }},
	{"Read", func(e *env) { e.remoteCases(verbs.OpRDMARead) }},
	{"NotAllowedByQP", remoteNotAllowedByQP},
	{"LongWriteChecksWholeRange", remoteLongWrite},
	{"EarlierRequestsSucceed", remoteEarlierSucceed},
	{"OtherConnectionsGoOn", remoteOthersGoOn},
	{"BothSidesFlush", remoteBothFlush},
}

// failsRemotely posts bad and two more requests. The peer must reject the first with
// one of the statuses; the others and the peer's requests are flushed, and both QPs enter
// the error state (IBTA 9.9.3, responder error class C).
func (e *env) failsRemotely(c *conn, bad verbs.SendWR, want ...verbs.Status) {
	e.Helper()
	bad.WRID = 1
	e.postRecv(c.b, recv(11), recv(12))
	e.post(c.a, bad, send(2), silent(send(3)))
	e.breaks(c.a, e.orRetryExc(want...), 1, 2, 3)
	first := []verbs.Status{verbs.StatusWRFlushErr}
	if bad.Opcode == verbs.OpRDMAWriteWithImm {
		// The request may have consumed its receive before it was found invalid, and then the
		// receive fails with a dedicated status (IBTA 11.6.2).
		first = append(first, verbs.StatusLocAccessErr)
	}
	e.breaks(c.b, first, 11, 12)
}

// badRemote is an invalid reference to remote memory.
type badRemote struct {
	name   string
	access verbs.Access                               // of the region
	change func(e *env, target *buf, w *verbs.SendWR) // makes a valid request invalid; nil if access does so
}

const all = verbs.AccessAll

// badRemotes all result in REM_ACCESS_ERR (IBTA 11.6.2, remote access error).
var badRemotes = []badRemote{
	{"Key", all, func(_ *env, _ *buf, w *verbs.SendWR) { w.RKey ^= 0x5a5a5a5a }},
	{"KeyZero", all, func(_ *env, _ *buf, w *verbs.SendWR) { w.RKey = 0 }},
	{"StaleKey", all, func(e *env, t *buf, _ *verbs.SendWR) { e.must(t.mr.Close(), "Close") }},
	{"PastEnd", all, func(_ *env, _ *buf, w *verbs.SendWR) { w.RemoteAddr++ }},
	{"BehindEnd", all, func(_ *env, _ *buf, w *verbs.SendWR) { w.RemoteAddr += 64 }},
	{"BeforeStart", all, func(_ *env, _ *buf, w *verbs.SendWR) { w.RemoteAddr-- }},
	{"AddressZero", all, func(_ *env, _ *buf, w *verbs.SendWR) { w.RemoteAddr = 0 }},
	{"AddressWraps", all, func(_ *env, _ *buf, w *verbs.SendWR) { w.RemoteAddr = ^uint64(0) - 7 }},
	{"LocalOnly", verbs.AccessLocalWrite, nil},
	{"OtherPD", all, func(e *env, t *buf, w *verbs.SendWR) {
		w.RKey = e.register(e.newPD(e.b), t.mem, verbs.AccessAll).RKey()
	}},
}

// eachBadRemote runs a subtest for every invalid reference to the target of op.
func (e *env) eachBadRemote(op verbs.Opcode, run func(e *env, bad verbs.SendWR, local, target *buf)) {
	cases := append(slices.Clone(badRemotes), badRemote{"ReadOnly", verbs.AccessRemoteRead, nil})
	if op == verbs.OpRDMARead {
		cases[len(badRemotes)] = badRemote{"WriteOnly", all &^ verbs.AccessRemoteRead, nil}
	}
	for _, tt := range cases {
		e.sub(tt.name, func(e *env) {
			local, target := e.buf(e.a, 64), e.bufWith(e.b.pd, 64, tt.access)
			target.paint()
			bad := oneSided(op, 1, target, 0, local.sge(0, 64))
			if tt.change != nil {
				tt.change(e, target, &bad)
			}
			run(e, bad, local, target)
		})
	}
}

// The peer refuses a request on remote memory without permission.
func (e *env) remoteCases(op verbs.Opcode) {
	e.eachBadRemote(op, func(e *env, bad verbs.SendWR, local, target *buf) {
		e.failsRemotely(e.rc(), bad, verbs.StatusRemAccessErr)
		e.untouched(target)
		e.same(local.bytes(), make([]byte, 64))
	})
}

// A QP serves only the operations allowed by its access flags. The responder calls it an invalid
// request ("operation not supported by this receive queue", IBTA 11.6.2); hardware that checks QP
// and region in one go reports an access error instead, so both are accepted.
func remoteNotAllowedByQP(e *env) {
	for _, tt := range []struct {
		flag verbs.Access
		op   verbs.Opcode
	}{
		{verbs.AccessRemoteWrite, verbs.OpRDMAWrite},
		{verbs.AccessRemoteWrite, verbs.OpRDMAWriteWithImm},
		{verbs.AccessRemoteRead, verbs.OpRDMARead},
		{verbs.AccessRemoteAtomic, verbs.OpAtomicFetchAndAdd},
		{verbs.AccessRemoteAtomic, verbs.OpAtomicCmpAndSwp},
	} {
		e.sub(tt.op.String(), func(e *env) {
			if tt.flag == verbs.AccessRemoteAtomic {
				e.needAtomics()
			}
			c := e.conn(connConfig{tweakB: func(a *verbs.QPAttr) { a.Access &^= tt.flag }})
			local, target := e.buf(e.a, 64), e.painted(e.b, 64)
			e.failsRemotely(c, oneSided(tt.op, 1, target, 0, local.sge(0, 8)), verbs.StatusRemInvReqErr, verbs.StatusRemAccessErr)
			e.untouched(target)
		})
	}
}

// The first packet of a WRITE covers the whole range: if its end is not allowed, no byte is
// written.
func remoteLongWrite(e *env) {
	const size = 30000
	c, local, target := e.rc(), e.buf(e.a, size+1), e.painted(e.b, size)
	e.failsRemotely(c, write(1, target, 0, local.sge(0, size+1)), verbs.StatusRemAccessErr)
	e.untouched(target)
}

// Requests posted before a failing one are executed and succeed; later ones are not executed.
func remoteEarlierSucceed(e *env) {
	e.needLossless("the answers to the earlier requests may be lost too")
	c, src, dst := e.rc(), e.filled(e.a, 1, 64), e.painted(e.b, 128)
	e.post(c.a, write(1, dst, 0, src.sge(0, 32)), write(2, dst, 32, src.sge(32, 32)), write(3, dst, 100, src.sge(0, 64)),
		write(4, dst, 64, src.sge(0, 64)))
	e.done(c.a, 1, verbs.WCRDMAWrite)
	e.done(c.a, 2, verbs.WCRDMAWrite)
	e.fails(c.a, 3, verbs.StatusRemAccessErr)
	e.flushed(c.a.cq, c.a, 4)
	e.holds(dst, 0, payload(1, 64))
}

// A failure breaks only its own connection.
func remoteOthersGoOn(e *env) {
	other := e.rc()
	c, local, target := e.rc(), e.buf(e.a, 64), e.buf(e.b, 64)
	e.failsRemotely(c, write(1, target, 1, local.sge(0, 64)), verbs.StatusRemAccessErr)
	e.exchange(other, 1000)
	e.bothIn(other, verbs.StateRTS)
	e.exchange(e.rc(), 1000)
}

// The refusing QP flushes its sends as well as its receives.
func remoteBothFlush(e *env) {
	c := e.conn(connConfig{sendA: e.newCQ(e.a, 64, nil)}).back()
	local, target := e.buf(e.b, 64), e.buf(e.a, 64)
	e.post(c.b, send(21), silent(send(22))) // stay outstanding without a receive
	e.postRecv(c.b, recv(11))
	e.post(c.a, write(1, target, 1, local.sge(0, 64)))
	e.fails(c.a, 1, e.orRetryExc(verbs.StatusRemAccessErr)...)
	e.flushed(c.b.sendCQ, c.b, 21, 22)
	e.flushed(c.b.cq, c.b, 11)
	e.inState(c.b, verbs.StateErr)
}
