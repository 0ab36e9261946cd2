package verbstest

import (
	"fmt"

	"ibverbx/verbs"
)

var ucRuleTests = []test{
	{"InOrder", ucInOrder},
	{"ChainStopsAtRefused", ucNotOnUC},
	{"BadRemoteDrops", ucBadRemote},
	{"NotAllowedByQPDrops", ucNotAllowed},
	{"LocalErrors", ucLocalError},
	{"EarlierRequestsSucceed", ucEarlierSucceed},
	{"SQETransitions", ucSQETransitions},
	{"SharedReceiveQueue", ucSRQ},
}

// Messages of one QP arrive in the order in which they were posted (IBTA 9.8.2), each
// in the receive that is its turn, and WRITEs are there before the SEND behind them.
func ucInOrder(e *env) {
	const count, size = 10, 300
	c := e.uc()
	src, dst, target := e.filled(e.a, 1, count*size), e.buf(e.b, count*size), e.buf(e.b, size)
	for i := range count {
		e.postRecv(c.b, recv(uint64(i), dst.sge(i*size, size)))
	}
	for i := range count {
		e.post(c.a, silent(write(uint64(200+i), target, 0, src.sge(i*size, size))),
			sendImm(uint64(100+i), uint32(i), src.sge(i*size, size-i)))
	}
	e.doneFrom(c.a, 100, count, verbs.WCSend)
	for i, wc := range e.wait(c.b.cq, count) {
		e.receivedImm(wc, c.b, uint64(i), verbs.WCRecv, size-i, uint32(i))
		e.same(dst.bytes()[i*size:][:size-i], src.bytes()[i*size:][:size-i])
	}
	e.same(target.bytes(), src.bytes()[(count-1)*size:])
}

// refusedOps posts, behind a good request, one of each of the opcodes that the QP does
// not have: the good one is taken, the other is not, and neither is what follows it.
func (e *env) refusedOps(c *conn, good verbs.SendWR, ops ...verbs.Opcode) {
	e.Helper()
	local, target, dst := e.buf(e.a, 64), e.painted(e.b, 64), e.buf(e.b, 64)
	for i, op := range ops {
		e.postRecv(c.b, recv(uint64(i), dst.sge(0, 64)))
		bad := good
		bad.Opcode, bad.WRID, bad.RemoteAddr, bad.RKey = op, 99, target.at(0), target.mr.RKey()
		bad.SetSGE(local.sge(0, 8))
		n, err := c.a.PostSend([]verbs.SendWR{good, bad, good})
		if n != 1 {
			e.Fatalf("PostSend of a chain with %v as second request on %v = %d, %v, want 1", op, c.a.Type(), n, err)
		}
		e.refused(fmt.Sprintf("PostSend of %v on %v", op, c.a.Type()), err, verbs.ErrInvalid, verbs.ErrNotSupported)
		e.done(c.a, good.WRID, verbs.WCSend)
		e.ok(e.waitOne(c.b.cq), c.b, uint64(i), verbs.WCRecv)
	}
	e.none(c.a.cq, c.b.cq)
	e.untouched(target)
	e.inState(c.a, verbs.StateRTS)
}

// UC has no READ and no atomics (IBTA table 38; ibv_post_send(3)).
func ucNotOnUC(e *env) {
	e.refusedOps(e.uc(), sendImm(1, 1), verbs.OpRDMARead, verbs.OpAtomicCmpAndSwp, verbs.OpAtomicFetchAndAdd)
}

// outfit completes a send, with the destination if the transport wants one.
type outfit func(w verbs.SendWR) verbs.SendWR

func plain(w verbs.SendWR) verbs.SendWR { return w }

// ucDropped sends bad, which must leave no trace but the sender's success, and then a
// message that must come through and take the receive: UC keeps the order, so by then
// bad has been dealt with.
func (e *env) ucDropped(c *conn, bad verbs.SendWR, target *buf) {
	e.Helper()
	bad.WRID = 1
	target.paint()
	e.postRecv(c.b, recv(11))
	e.post(c.a, bad, sendImm(2, 22))
	e.done(c.a, 1, verbs.WCRDMAWrite)
	e.done(c.a, 2, verbs.WCSend)
	e.getsImm(c.b, 11, verbs.WCRecv, 0, 22)
	e.untouched(target)
	e.none(c.a.cq, c.b.cq)
	e.bothIn(c, verbs.StateRTS)
	e.fence(c)
}

// A WRITE to memory that the peer may not write is dropped: nothing is written, nobody
// is told, and both QPs go on (IBTA 9.9.3, responder error class D for UC).
func ucBadRemote(e *env) {
	cases := append(badRemotes[:len(badRemotes):len(badRemotes)],
		badRemote{"ReadOnly", verbs.AccessRemoteRead, func(*env, *buf, *verbs.SendWR) {}})
	for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm} {
		for _, tt := range cases {
			e.sub(op.String()+"/"+tt.name, func(e *env) {
				access := tt.access
				if access == 0 {
					access = verbs.AccessAll
				}
				c, local, target := e.uc(), e.buf(e.a, 64), e.bufWith(e.b.pd, 64, access)
				bad := oneSided(op, 1, target, 0, local.sge(0, 64))
				tt.change(e, target, &bad)
				e.ucDropped(c, bad, target)
			})
		}
	}
	e.sub("ManyPackets", func(e *env) {
		const size = 20000
		c, local, target := e.uc(), e.buf(e.a, size+1), e.buf(e.b, size)
		e.ucDropped(c, write(1, target, 0, local.sge(0, size+1)), target)
	})
}

// So is a WRITE to a QP that does not allow any.
func ucNotAllowed(e *env) {
	e.needUC()
	c := e.conn(connConfig{typ: verbs.UC, tweakB: func(a *verbs.QPAttr) { a.Access &^= verbs.AccessRemoteWrite }})
	local, target := e.buf(e.a, 64), e.buf(e.b, 64)
	e.ucDropped(c, write(1, target, 0, local.sge(0, 64)), target)
	e.ucDropped(c, writeImm(1, 5, target, 0, local.sge(0, 64)), target)
}

// stopsAndGoesOn posts bad and two more requests. The first must fail with a local
// protection error, the others are flushed, and so is what is posted afterwards: the
// QP is in SQE. Its receives go on, and it goes back to RTS (IBTA 10.3.1.6). Nothing of
// the failed and flushed requests reaches the peer.
func (e *env) stopsAndGoesOn(c *conn, out, back outfit, bad verbs.SendWR) {
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

	e.must(c.a.Modify(verbs.QPAttr{State: verbs.StateRTS}, verbs.AttrState), "Modify from SQE to RTS")
	e.inState(c.a, verbs.StateRTS)
	e.do(c.a, out(sendImm(7, 77)))
	wc := e.waitOne(c.b.cq)
	e.receivedImm(wc, c.b, 11, verbs.WCRecv, int(wc.ByteLen), 77)
	e.none(c.a.cq, c.b.cq)
}

// A request that names local memory it may not use stops the send queue, no more.
func ucLocalError(e *env) {
	e.needUC()
	for _, tt := range badLocals {
		e.sub("SEND/"+tt.name, func(e *env) {
			e.stopsAndGoesOn(e.uc(), plain, plain, send(1, tt.sge(e, e.a)))
		})
		e.sub("RDMA_WRITE/"+tt.name, func(e *env) {
			target := e.painted(e.b, 64)
			e.stopsAndGoesOn(e.uc(), plain, plain, write(1, target, 0, tt.sge(e, e.a)))
			e.untouched(target)
		})
	}
}

// What was posted before the failing request is sent and succeeds.
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

// From SQE a QP goes to RTS, ERR or RESET, and nowhere else (IBTA 10.3.1.6;
// ibv_modify_qp(3)).
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
			e.must(c.a.Modify(verbs.QPAttr{State: to}, verbs.AttrState), "Modify from SQE to %v", to)
			e.inState(c.a, to)
			if to == verbs.StateErr {
				e.flushed(c.a.cq, c.a, 11)
			}
			e.none(c.a.cq)
		})
	}
}

// A UC QP takes its receives from an SRQ if the device can do that.
func ucSRQ(e *env) {
	e.needUC()
	e.needSRQ()
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
