package verbstest

import (
	"fmt"

	"ibverbx/verbs"
)

var flushTests = []test{
	{"Receives", flushReceives},
	{"Sends", flushSends},
	{"SendsOfEveryKind", flushEveryKind},
	{"SeparateCQs", flushSeparateCQs},
	{"PostSendAfterwards", flushPostSend},
	{"PostRecvAfterwards", flushPostRecv},
	{"OnlyOnce", flushOnlyOnce},
	{"ResetDiscards", flushResetDiscards},
	{"FromInit", flushFromInit},
}

// A QP entering ERR completes all its receives with WR_FLUSH_ERR, in posting order (IBTA 10.3.1.7).
func flushReceives(e *env) {
	c := e.rc()
	dst := e.painted(e.b, 64)
	e.postRecv(c.b, recv(1), recv(2, dst.sge(0, 8)), recv(3), recv(4, dst.sge(8, 8)), recv(5))
	e.move(c.b, verbs.StateErr)
	e.flushed(c.b.cq, c.b, 1, 2, 3, 4, 5)
	e.expectEmpty(c.b.cq)
	e.inState(c.b, verbs.StateErr)
	e.untouched(dst)
}

// A QP entering ERR completes all its sends with WR_FLUSH_ERR, signaled or not.
func flushSends(e *env) {
	c := e.rc()
	// Without a receive at the peer, the requests cannot complete.
	e.post(c.a, send(1), silent(send(2)), silent(send(3)), send(4), silent(send(5)))
	e.move(c.a, verbs.StateErr)
	e.flushed(c.a.cq, c.a, 1, 2, 3, 4, 5)
	e.expectEmpty(c.a.cq)
	e.inState(c.a, verbs.StateErr)
	e.expectEmpty(c.b.cq)
}

// Every opcode is flushed while it waits behind a blocked SEND.
func flushEveryKind(e *env) {
	e.needAtomics()
	c := e.rc()
	local, remote := e.buf(e.a, 64), e.painted(e.b, 64)
	// A WRITE that waits behind an RNR-NAKed SEND may have left for the peer, but the
	// peer must not carry it out.
	e.post(c.a, send(1), write(2, remote, 0, local.sge(0, 8)), silent(write(3, remote, 0, local.sge(0, 8))),
		fetchAdd(4, remote, 0, 1, local.sge(0, 8)), sendImm(5, 1), silent(read(6, remote, 0, local.sge(0, 8))))
	e.move(c.a, verbs.StateErr)
	e.flushed(c.a.cq, c.a, 1, 2, 3, 4, 5, 6)
	e.untouched(remote)
	e.same(local.bytes(), make([]byte, 64))
}

// Sends are flushed into the send CQ and receives into the receive CQ.
func flushSeparateCQs(e *env) {
	c := e.conn(connConfig{sendA: e.newCQ(e.a, 64, nil)})
	e.post(c.a, send(1), send(2))
	e.postRecv(c.a, recv(11), recv(12))
	e.move(c.a, verbs.StateErr)
	e.flushed(c.a.cq, c.a, 11, 12)
	e.flushed(c.a.sendCQ, c.a, 1, 2)
	e.expectEmpty(c.a.cq, c.a.sendCQ)
}

// A send posted in ERR is accepted and flushed (ibv_post_send(3)).
func flushPostSend(e *env) {
	c, dst := e.rc(), e.painted(e.b, 8)
	src := e.buf(e.a, 8)
	e.move(c.a, verbs.StateErr)
	e.post(c.a, send(1), silent(write(2, dst, 0, src.sge(0, 8))))
	e.flushed(c.a.cq, c.a, 1, 2)
	e.post(c.a, read(3, dst, 0, src.sge(0, 8)))
	e.flushed(c.a.cq, c.a, 3)
	e.expectEmpty(c.a.cq)
	e.untouched(dst)
}

// A receive posted in ERR is accepted; devices with CapFlushOnPost flush it immediately, others
// discard it with the QP.
func flushPostRecv(e *env) {
	c := e.rc()
	e.move(c.b, verbs.StateErr)
	e.postRecv(c.b, recv(1), recv(2))
	if e.b.attr.Capabilities&verbs.CapFlushOnPost != 0 {
		e.flushed(c.b.cq, c.b, 1, 2)
		e.expectEmpty(c.b.cq)
	}
	e.move(c.b, verbs.StateReset)
}

// Every request has one completion, even if it fails and the QP is moved to ERR again.
func flushOnlyOnce(e *env) {
	c := e.rc()
	e.post(c.a, send(1), send(2))
	e.move(c.a, verbs.StateErr)
	e.move(c.a, verbs.StateErr)
	e.flushed(c.a.cq, c.a, 1, 2)
	e.move(c.a, verbs.StateErr)
	e.post(c.a, send(3))
	e.flushed(c.a.cq, c.a, 3)
	e.expectEmpty(c.a.cq)
}

// RESET discards outstanding requests without completions, and they have no effect when the QP is
// reused (IBTA 10.3.1.1).
func flushResetDiscards(e *env) {
	c := e.rc()
	dst := e.painted(e.b, 64)
	e.post(c.a, send(1), send(2))
	e.postRecv(c.a, recv(3), recv(4))
	e.moveBoth(c, verbs.StateReset)
	e.connect(c, connConfig{})
	e.postRecv(c.a, recv(5))
	e.message(c, recv(6, dst.sge(0, 8)), sendImm(7, 77))
	e.do(c.b, sendImm(8, 88))
	e.getsImm(c.a, 5, verbs.WCRecv, 0, 88)
	e.expectEmpty(c.a.cq, c.b.cq)
	e.untouched(dst)
}

// A QP that was never connected also flushes its receives.
func flushFromInit(e *env) {
	for n := range uint64(3) {
		e.sub(fmt.Sprintf("receives=%d", n), func(e *env) {
			q := e.newQP(e.a, verbs.QPConfig{Type: verbs.RC, MaxSendWR: 1, MaxRecvWR: 4})
			e.must(verbs.InitQP(q.QP, e.a.port), "InitQP")
			var ids []uint64
			for id := range n {
				e.postRecv(q, recv(id))
				ids = append(ids, id)
			}
			e.move(q, verbs.StateErr)
			e.flushed(q.cq, q, ids...)
			e.expectEmpty(q.cq)
			e.inState(q, verbs.StateErr)
		})
	}
}
