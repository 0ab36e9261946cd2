package verbstest

import (
	"slices"

	"ibverbx/verbs"
)

// dropped sends a datagram that nobody may get, then one for d.b, and checks that only
// the second arrives. Datagrams of one QP to one port keep their order.
func (e *env) dropped(d *datagrams, bad verbs.SendWR) {
	e.Helper()
	dst := e.painted(e.b, 128)
	e.postRecv(d.b, recv(11, dst.sge(0, 64)), recv(12, dst.sge(64, 64)))
	e.post(d.a, bad, d.to(sendImm(2, 22)))
	e.done(d.a, bad.WRID, verbs.WCSend)
	e.done(d.a, 2, verbs.WCSend)
	if wc := e.arrived(d.a, d.b, 11, 0); wc.Imm != 22 {
		e.Errorf("immediate of the datagram that arrived = %d, want 22", wc.Imm)
	}
	e.none(d.b.cq)
	e.bothIn(d.conn, verbs.StateRTS)
}

// A datagram with another Q_Key is dropped without an error (IBTA chapter 10, Q_Keys).
func udWrongQKey(e *env) {
	d := e.ud()
	bad := d.to(sendImm(1, 11))
	bad.RemoteQKey ^= 1
	e.dropped(d, bad)
}

// A Q_Key with the high bit set stands for the Q_Key of the sending QP (IBTA chapter 10,
// Q_Keys).
func udControlledQKey(e *env) {
	d, dst := e.ud(), e.buf(e.b, 64)
	if got := e.endpoint(d.a).QKey; got != d.qkey {
		e.Fatalf("Q_Keys of two new QPs are %#x and %#x, want the default for both", got, d.qkey)
	}
	wr := d.to(sendImm(1, 11))
	wr.RemoteQKey = 0x80000000
	e.postRecv(d.b, recv(1, dst.sge(0, 64)))
	e.post(d.a, wr)
	if wc := e.arrived(d.a, d.b, 1, 0); wc.Imm != 11 {
		e.Errorf("immediate = %d, want 11", wc.Imm)
	}
}

// A datagram to a QP that does not exist, or is none for datagrams, is dropped.
func udWrongQPN(e *env) {
	e.sub("Closed", func(e *env) {
		d := e.ud()
		gone := e.newQP(e.b, verbs.QPConfig{Type: verbs.UD, MaxSendWR: 1, MaxRecvWR: 1})
		e.must(gone.Close(), "Close")
		bad := d.to(sendImm(1, 11))
		bad.RemoteQPN = gone.Num()
		e.dropped(d, bad)
	})
	e.sub("RC", func(e *env) {
		d, c := e.ud(), e.rc()
		e.postRecv(c.b, recv(9))
		bad := d.to(sendImm(1, 11))
		bad.RemoteQPN = c.b.Num()
		e.dropped(d, bad)
		e.none(c.b.cq)
		e.inState(c.b, verbs.StateRTS)
	})
}

// A datagram that finds no receive is dropped, and the next one gets through. On a slow
// device the first may still be on its way when the receive is posted and then gets it;
// that may happen a few times, but not always.
func udNoReceive(e *env) {
	d, other, dst := e.ud(), e.rc(), e.buf(e.b, 64)
	for try := range uint32(20) {
		e.do(d.a, d.to(sendImm(1, 2*try)))
		e.fence(other)
		e.fence(other)
		e.postRecv(d.b, recv(11, dst.sge(0, 64)))
		e.do(d.a, d.to(sendImm(2, 2*try+1)))
		wc := e.arrived(d.a, d.b, 11, 0)
		e.inState(d.b, verbs.StateRTS)
		if wc.Imm == 2*try+1 {
			return
		}
		if wc.Imm > 2*try+1 {
			e.Fatalf("immediate = %d in try %d", wc.Imm, try)
		}
	}
	e.Error("a datagram that found no receive was kept until there was one")
}

// A datagram has one packet. What is longer than the MTU is refused, or completes with
// LOC_LEN_ERR (IBTA 11.6.2; ibv_post_send(3) allows an immediate error).
func udTooLong(e *env) {
	d := e.ud()
	n := d.mtu + 1
	src, dst := e.buf(e.a, n), e.painted(e.b, n+verbs.GRHLen)
	e.postRecv(d.b, recv(11, dst.sge(0, n+verbs.GRHLen)))
	k, err := d.a.PostSend([]verbs.SendWR{d.to(send(1, src.sge(0, n)))})
	if k == 0 {
		e.refused("PostSend of a datagram above the MTU", err, verbs.ErrInvalid, verbs.ErrLimit)
	} else {
		e.fails(d.a, 1, verbs.StatusLocLenErr)
		e.inState(d.a, verbs.StateSQE)
		e.must(d.a.Modify(verbs.QPAttr{State: verbs.StateRTS}, verbs.AttrState), "Modify from SQE to RTS")
	}
	e.post(d.a, d.to(sendImm(2, 22)))
	if wc := e.arrived(d.a, d.b, 11, 0); wc.Imm != 22 {
		e.Errorf("immediate = %d, want 22", wc.Imm)
	}
}

// A datagram that is longer than its receive is dropped, or fails the receive with
// LOC_LEN_ERR. UD has no way to answer, and hardware does either; no byte goes behind
// the buffer in any case.
func udReceiveTooSmall(e *env) {
	d, src, dst := e.ud(), e.buf(e.a, 200), e.painted(e.b, 256)
	e.postRecv(d.b, recv(11, dst.sge(0, verbs.GRHLen+8)), recv(12, dst.sge(128, verbs.GRHLen+8)))
	e.post(d.a, d.to(send(1, src.sge(0, 9))), d.to(sendImm(2, 22, src.sge(0, 8))))
	wc := e.waitOne(d.b.cq)
	if wc.Status == verbs.StatusSuccess {
		e.ok(wc, d.b, 11, verbs.WCRecv)
		if wc.ByteLen != verbs.GRHLen+8 || wc.Imm != 22 {
			e.Errorf("receive = %d bytes, immediate %d, want the second datagram", wc.ByteLen, wc.Imm)
		}
	} else {
		e.failed(wc, d.b, 11, verbs.StatusLocLenErr)
		// Whether the QP goes on is left open as well.
		if wc := e.waitOne(d.b.cq); wc.WRID != 12 || !slices.Contains([]verbs.Status{verbs.StatusSuccess, verbs.StatusWRFlushErr}, wc.Status) {
			e.Errorf("second receive = wr_id %d, %v, want wr_id 12", wc.WRID, wc.Status)
		}
	}
	for _, b := range dst.bytes()[verbs.GRHLen+8 : 128] {
		if b != guard {
			e.Fatal("bytes behind the receive buffer were written")
		}
	}
}

// UD has SEND only (ibv_post_send(3)). The rest is refused when posted or completes
// with LOC_QP_OP_ERR.
func udOtherOpcodes(e *env) {
	for _, op := range []verbs.Opcode{
		verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm, verbs.OpRDMARead, verbs.OpAtomicFetchAndAdd, verbs.OpAtomicCmpAndSwp,
	} {
		e.sub(op.String(), func(e *env) {
			d, local, remote := e.ud(), e.buf(e.a, 8), e.painted(e.b, 8)
			n, err := d.a.PostSend([]verbs.SendWR{d.to(oneSided(op, 1, remote, 0, local.sge(0, 8)))})
			if n == 0 {
				e.refused("PostSend of "+op.String()+" on UD", err, verbs.ErrInvalid)
			} else {
				e.fails(d.a, 1, verbs.StatusLocQPOpErr)
			}
			e.fence(e.rc())
			e.untouched(remote)
		})
	}
}

// A datagram needs an address handle of its own PD. Without one it is refused when
// posted or fails locally, and does not arrive.
func udBadAH(e *env) {
	for _, name := range []string{"None", "OtherPD"} {
		e.sub(name, func(e *env) {
			d, dst := e.ud(), e.buf(e.b, 64)
			wr := d.to(sendImm(1, 11))
			wr.AH = 0
			if name == "OtherPD" {
				ah, err := e.newPD(e.a).CreateAH(e.connectAttr(d.a, e.endpoint(d.b)).AH)
				e.must(err, "CreateAH")
				e.closeLater("AH", ah)
				wr.AH = ah.Handle()
			}
			n, err := d.a.PostSend([]verbs.SendWR{wr})
			if n == 0 {
				e.refused("PostSend with a bad AH", err, verbs.ErrInvalid)
			} else {
				e.fails(d.a, 1, verbs.StatusLocQPOpErr, verbs.StatusLocProtErr)
				e.must(d.a.Modify(verbs.QPAttr{State: verbs.StateRTS}, verbs.AttrState), "Modify from SQE to RTS")
			}
			e.postRecv(d.b, recv(11, dst.sge(0, 64)))
			e.post(d.a, d.to(sendImm(2, 22)))
			if wc := e.arrived(d.a, d.b, 11, 0); wc.Imm != 22 {
				e.Errorf("immediate = %d, want 22", wc.Imm)
			}
		})
	}
}

// A local error of a send puts a UD QP in SQE, as it does a UC QP.
func udSQE(e *env) {
	d, src, dst, back := e.ud(), e.buf(e.a, 64), e.buf(e.b, 64), e.buf(e.a, 64)
	e.sqe(d.a, d.to(send(1, src.sge(1, 64))), d.to(send(2)))
	e.postRecv(d.a, recv(11, back.sge(0, 64)))
	wr := sendImm(12, 5)
	wr.AH, wr.RemoteQPN, wr.RemoteQKey = e.ah(d.b, d.a).Handle(), d.a.Num(), e.endpoint(d.a).QKey
	e.post(d.b, wr)
	e.done(d.b, 12, verbs.WCSend)
	e.arrived(d.b, d.a, 11, 0)
	e.must(d.a.Modify(verbs.QPAttr{State: verbs.StateRTS}, verbs.AttrState), "Modify from SQE to RTS")
	e.postRecv(d.b, recv(13, dst.sge(0, 64)))
	e.do(d.a, d.to(sendImm(14, 6)))
	e.arrived(d.a, d.b, 13, 0)
}
