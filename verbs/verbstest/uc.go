package verbstest

import (
	"fmt"

	"ibverbx/verbs"
)

var ucTests = []test{
	{"Send", ucSend},
	{"SendWithImm", ucSendImm},
	{"Write", ucWrite},
	{"WriteWithImm", ucWriteImm},
	{"Inline", ucInline},
	{"InOrder", ucInOrder},
	{"UnsignaledIsSilent", ucUnsignaled},
	{"SharedReceiveQueue", ucSRQ},
	{"ReadAndAtomicsRefused", ucReadRefused},
	{"NoReceiveDrops", ucNoReceive},
	{"BadRemoteDrops", ucBadRemote},
	{"NotAllowedByQPDrops", ucNotAllowed},
	{"LocalErrors", ucLocalErrors},
	{"EarlierRequestsSucceed", ucEarlierSucceed},
	{"SQETransitions", ucSQETransitions},
	{"FlushInErr", ucFlush},
}

// uc returns a connected pair of UC QPs.
func (e *env) uc() *conn {
	e.Helper()
	e.needUC()
	return e.conn(connConfig{typ: verbs.UC, inline: e.inlineSize()})
}

// Messages of all sizes arrive complete. The sender completes without a response.
func ucSend(e *env) { e.sendSizes(e.uc()) }

// SEND_WITH_IMM carries its immediate on UC too.
func ucSendImm(e *env) { e.immediates(e.uc()) }

// A WRITE changes exactly the target bytes. The SEND behind it signals its arrival.
func ucWrite(e *env) {
	c := e.uc()
	e.eachSize(c, func(e *env, n int, src, dst *buf) {
		e.postRecv(c.b, recv(1))
		e.do(c.a, write(2, dst, 13, src.part(3, n)...), send(3))
		e.gets(c.b, 1, 0)
		e.holds(dst, 13, payload(uint64(n), n))
	})
}

// WRITE_WITH_IMM writes and then consumes a receive on UC too.
func ucWriteImm(e *env) { e.writeImmSizes(e.uc()) }

// Inline data is copied at post time on UC too.
func ucInline(e *env) {
	n := e.inlineSize()
	c, src, dst := e.uc(), e.filled(e.a, 1, n), e.buf(e.b, n)
	e.postRecv(c.b, recv(1, dst.sge(0, n)))
	e.post(c.a, flagged(send(2, src.sge(0, n)), verbs.SendInline))
	src.paint()
	e.gets(c.b, 1, n)
	e.same(dst.bytes(), payload(1, n))
}

// Messages on one QP arrive in posting order (IBTA 9.8.2), each in the next receive, and WRITEs are
// in memory before the SEND behind them.
func ucInOrder(e *env) {
	c, target := e.uc(), e.buf(e.b, 300)
	e.inOrder(c, 10, func(content verbs.SGE) verbs.SendWR { return silent(write(1, target, 0, content)) })
	e.same(target.bytes(), payload(1, 3000)[2700:])
}

// A successful unsignaled request generates no completion on UC either.
func ucUnsignaled(e *env) {
	c, dst := e.uc(), e.buf(e.b, 8)
	e.postRecv(c.b, recv(1))
	e.do(c.a, silent(write(2, dst, 0)), silent(send(3)), write(4, dst, 0))
	e.gets(c.b, 1, 0)
	e.expectEmpty(c.a.cq)
}

// A UC QP uses an SRQ if the device supports it.
func ucSRQ(e *env) {
	e.needUC()
	e.needCap(verbs.CapSRQOnUC, "CapSRQOnUC")
	srq := e.newSRQ(e.b, verbs.SRQConfig{MaxWR: 8})
	c := e.conn(connConfig{typ: verbs.UC, srqB: srq})
	src, dst, target := e.filled(e.a, 1, 9000), e.painted(e.b, 9100), e.buf(e.b, 64)
	e.postRecv(srq, recv(11, dst.sge(50, 9000)), recv(12), recv(13))
	e.do(c.a, send(1, src.sge(0, 9000)), writeImm(2, 22, target, 0, src.sge(0, 64)), sendImm(3, 33))
	e.gets(c.b, 11, 9000)
	e.getsImm(c.b, 12, verbs.WCRecvRDMAWithImm, 64, 22)
	e.getsImm(c.b, 13, verbs.WCRecv, 0, 33)
	e.holds(dst, 50, payload(1, 9000))
	e.same(target.bytes(), payload(1, 64))
}

// refusedOps posts a valid request followed by one with an unsupported opcode, for each of the
// opcodes: the valid one is accepted, the other one and all later ones are rejected.
func (e *env) refusedOps(c *conn, good verbs.SendWR, ops ...verbs.Opcode) {
	e.Helper()
	local, target, dst := e.painted(e.a, 64), e.painted(e.b, 64), e.buf(e.b, 64)
	for i, op := range ops {
		e.postRecv(c.b, recv(uint64(i), dst.sge(0, 64)))
		bad := good
		bad.Opcode, bad.WRID, bad.RemoteAddr, bad.RKey = op, 99, target.at(0), target.mr.RKey()
		bad.SetSGE(local.sge(0, 8))
		what := fmt.Sprintf("PostSend of a chain with %v as second request on %v", op, c.a.Type())
		e.rejectsPost(what, 1, verbs.ErrInvalid)(c.a.PostSend([]verbs.SendWR{good, bad, good}))
		e.done(c.a, good.WRID, verbs.WCSend)
		e.ok(e.waitOne(c.b.cq), c.b, uint64(i), verbs.WCRecv)
	}
	e.expectEmpty(c.a.cq, c.b.cq)
	e.untouched(target)
	e.untouched(local)
	e.inState(c.a, verbs.StateRTS)
}

// UC supports neither READ nor atomics (IBTA table 38; ibv_post_send(3)).
func ucReadRefused(e *env) {
	e.refusedOps(e.uc(), sendImm(1, 1), verbs.OpRDMARead, verbs.OpAtomicCmpAndSwp, verbs.OpAtomicFetchAndAdd)
}

// settled waits until B has processed everything that A sent on a UC connection: a WRITE on it
// arrives last, and READs over another connection poll for it.
func (e *env) settled(c, look *conn, number uint64) {
	e.Helper()
	mark, found := e.buf(e.a, 16), e.buf(e.b, 8)
	mark.putWord(0, number)
	e.do(c.a, write(9001, found, 0, mark.sge(0, 8)))
	for d := newDeadline(); mark.word(8) != number; {
		e.do(look.a, read(9002, found, 0, mark.sge(8, 8)))
		if mark.word(8) != number && !d.wait() {
			e.Fatalf("a UC WRITE did not arrive within %v", waitLimit)
		}
	}
}

// A message without a receive is dropped silently on both sides, and the next one arrives (IBTA
// 9.8, unreliable service).
func ucNoReceive(e *env) {
	c, look := e.uc(), e.rc()
	src, dst := e.buf(e.a, 5000), e.buf(e.b, 5000)
	for round := range uint64(3) {
		src.put(0, payload(round, 5000))
		e.do(c.a, sendImm(1, 1, src.sge(0, 5000)), writeImm(2, 2, dst, 0))
		e.settled(c, look, round+1)
		e.expectEmpty(c.b.cq)
		dst.paint()
		e.message(c, recv(3, dst.sge(0, 4000)), sendImm(4, 4, src.sge(0, 3000)))
		e.holds(dst, 0, payload(round, 5000)[:3000])
		e.bothIn(c, verbs.StateRTS)
	}
}

// ucDropped sends bad, whose only effect must be the sender's success, and then a message that
// must arrive and consume the receive: UC preserves the order, so bad has been processed by
// then.
func (e *env) ucDropped(c *conn, bad verbs.SendWR, target *buf) {
	e.Helper()
	bad.WRID = 1
	target.paint()
	e.postRecv(c.b, recv(11))
	e.do(c.a, bad, sendImm(2, 22))
	e.getsImm(c.b, 11, verbs.WCRecv, 0, 22)
	e.untouched(target)
	e.expectEmpty(c.a.cq, c.b.cq)
	e.bothIn(c, verbs.StateRTS)
	e.fence(c)
}

// A WRITE without permission is dropped: it does not change the memory, neither side gets an error,
// and both QPs remain usable (IBTA 9.9.3, responder error class D for UC).
func ucBadRemote(e *env) {
	for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm} {
		e.sub(op.String(), func(e *env) {
			e.eachBadRemote(op, func(e *env, bad verbs.SendWR, _, target *buf) { e.ucDropped(e.uc(), bad, target) })
		})
	}
	e.sub("ManyPackets", func(e *env) {
		const size = 20000
		c, local, target := e.uc(), e.buf(e.a, size+1), e.buf(e.b, size)
		e.ucDropped(c, write(1, target, 0, local.sge(0, size+1)), target)
		bad := write(1, target, 0, local.sge(0, size))
		bad.RKey ^= 0x5a5a5a5a
		e.ucDropped(c, bad, target)
	})
}

// A WRITE to a QP without remote write access is dropped in the same way.
func ucNotAllowed(e *env) {
	e.needUC()
	c := e.conn(connConfig{typ: verbs.UC, tweakB: func(a *verbs.QPAttr) { a.Access &^= verbs.AccessRemoteWrite }})
	local, target := e.buf(e.a, 64), e.buf(e.b, 64)
	e.ucDropped(c, write(1, target, 0, local.sge(0, 64)), target)
	e.ucDropped(c, writeImm(1, 5, target, 0, local.sge(0, 64)), target)
}

// outfit completes a send, with a destination if the transport requires one.
type outfit func(w verbs.SendWR) verbs.SendWR

func plain(w verbs.SendWR) verbs.SendWR { return w }

// failsIntoSQE posts bad and two more requests. The first must fail with a local
// protection error; the others and all later sends are flushed, because the QP is in SQE. Its
// receives keep working, and it can return to RTS (IBTA 10.3.1.6). The failed and flushed requests
// must not reach the peer.
func (e *env) failsIntoSQE(c *conn, out, back outfit, bad verbs.SendWR) {
	e.Helper()
	a, b := e.buf(e.a, 64), e.buf(e.b, 64)
	bad.WRID = 1
	e.postRecv(c.b, recv(11, b.sge(0, 64)))
	e.postRecv(c.a, recv(12, a.sge(0, 64)))
	e.post(c.a, out(bad), out(send(2)), silent(out(send(3))))
	e.fails(c.a, 1, verbs.StatusLocProtErr)
	e.flushed(c.a.cq, c.a, 2, 3)
	e.inState(c.a, verbs.StateSQE)
	e.post(c.a, out(send(4)), silent(out(send(5))))
	e.flushed(c.a.cq, c.a, 4, 5)
	e.inState(c.a, verbs.StateSQE)

	for i, id := range []uint64{12, 13} { // posted before and in SQE
		e.do(c.b, back(sendImm(6, uint32(66+i))))
		wc := e.waitOne(c.a.cq)
		e.receivedImm(wc, c.a, id, verbs.WCRecv, int(wc.ByteLen), uint32(66+i))
		e.postRecv(c.a, recv(id+1, a.sge(0, 64)))
	}

	e.move(c.a, verbs.StateRTS)
	e.inState(c.a, verbs.StateRTS)
	e.do(c.a, out(sendImm(7, 77)))
	wc := e.waitOne(c.b.cq)
	e.receivedImm(wc, c.b, 11, verbs.WCRecv, int(wc.ByteLen), 77)
	e.expectEmpty(c.a.cq, c.b.cq)
}

// A request on local memory without permission moves a UC QP to SQE: its sends are flushed, its
// receives keep working, and it can return to RTS.
func ucLocalErrors(e *env) {
	e.needUC()
	for _, tt := range badLocals {
		e.sub("SEND/"+tt.name, func(e *env) {
			e.failsIntoSQE(e.uc(), plain, plain, send(1, tt.sge(e, e.a)))
		})
		e.sub("RDMA_WRITE/"+tt.name, func(e *env) {
			target := e.painted(e.b, 64)
			e.failsIntoSQE(e.uc(), plain, plain, write(1, target, 0, tt.sge(e, e.a)))
			e.untouched(target)
		})
	}
}

// Requests posted before a failing one are sent and succeed.
func ucEarlierSucceed(e *env) {
	c, src, dst := e.uc(), e.filled(e.a, 1, 64), e.painted(e.b, 64)
	e.postRecv(c.b, recv(11, dst.sge(0, 64)))
	e.post(c.a, send(1, src.sge(0, 40)), send(2, src.sge(40, 40)), send(3, src.sge(0, 8)))
	e.done(c.a, 1, verbs.WCSend)
	e.fails(c.a, 2, verbs.StatusLocProtErr)
	e.flushed(c.a.cq, c.a, 3)
	e.gets(c.b, 11, 40)
	e.holds(dst, 0, payload(1, 40))
	e.inState(c.a, verbs.StateSQE)
}

// From SQE, only RTS, ERR and RESET are reachable (IBTA 10.3.1.6; ibv_modify_qp(3)).
func ucSQETransitions(e *env) {
	for _, to := range []verbs.QPState{verbs.StateRTS, verbs.StateErr, verbs.StateReset} {
		e.sub(to.String(), func(e *env) {
			c, src := e.uc(), e.buf(e.a, 64)
			attr := e.connectAttr(c.a, e.endpoint(c.b))
			e.postRecv(c.a, recv(11))
			e.post(c.a, send(1, src.sge(1, 64)))
			e.fails(c.a, 1, verbs.StatusLocProtErr)
			e.inState(c.a, verbs.StateSQE)
			for _, bad := range []verbs.QPState{verbs.StateInit, verbs.StateRTR, verbs.StateSQD, verbs.StateSQE} {
				_ = e.refusedChange(c.a, verbs.StateSQE, bad, attr, verbs.AttrState)
			}
			mask := verbs.AttrState
			if to == verbs.StateRTS {
				mask |= verbs.AttrCurState // optional, but must match
			}
			e.must(c.a.Modify(verbs.QPAttr{State: to, CurState: verbs.StateSQE}, mask), "Modify from SQE to %v", to)
			e.inState(c.a, to)
			if to == verbs.StateErr {
				e.flushed(c.a.cq, c.a, 11)
			}
			e.expectEmpty(c.a.cq)
		})
	}
}

// ERR flushes a UC QP like an RC QP.
func ucFlush(e *env) {
	c := e.uc()
	e.postRecv(c.a, recv(1), recv(2))
	e.move(c.a, verbs.StateErr)
	e.flushed(c.a.cq, c.a, 1, 2)
	e.post(c.a, send(3), silent(send(4)))
	e.flushed(c.a.cq, c.a, 3, 4)
	e.expectEmpty(c.a.cq)
}
