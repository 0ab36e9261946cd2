package verbstest

import "ibverbx/verbs"

var udRuleTests = []test{
	{"TwoSenders", udTwoSenders},
	{"GRHSplit", udGRHSplit},
	{"ClosedAH", udClosedAH},
	{"ChainStopsAtRefused", udChainStops},
	{"LocalErrors", udLocalErrors},
	{"SharedReceiveQueue", udSRQ},
}

// towards returns what makes a send of from a datagram for to.
func (e *env) towards(from, to *end) outfit {
	e.Helper()
	ah, qkey := e.ah(from, to), e.endpoint(to).QKey
	return func(w verbs.SendWR) verbs.SendWR {
		w.AH, w.RemoteQPN, w.RemoteQKey = ah.Handle(), to.Num(), qkey
		return w
	}
}

// A receiver tells its senders apart by SrcQPN, on whichever side they are.
func udTwoSenders(e *env) {
	d := e.ud()
	cfg := verbs.QPConfig{Type: verbs.UD, MaxSendWR: 8, MaxRecvWR: 8}
	senders := []*end{d.a, e.newQP(e.a, cfg), e.newQP(e.b, cfg)}
	dst := e.buf(e.b, 64)
	for i, q := range senders {
		if i > 0 {
			e.must(q.Connect(verbs.Endpoint{}), "Connect of a UD QP to nowhere")
		}
		for round := range uint32(2) {
			e.postRecv(d.b, recv(11, dst.sge(0, 64)))
			imm := round<<8 | uint32(i)
			e.post(q, e.towards(q, d.b)(sendImm(1, imm)))
			e.done(q, 1, verbs.WCSend)
			if wc := e.arrived(q, d.b, 11, 0); wc.Flags&verbs.WCWithImm == 0 || wc.Imm != imm {
				e.Errorf("immediate of sender %d = %#x, want %#x", i, wc.Imm, imm)
			}
		}
	}
}

// The area of the GRH and the payload are one run of bytes to the elements of a receive,
// wherever those are cut (ibv_post_recv(3)).
func udGRHSplit(e *env) {
	const n = 100
	d := e.ud()
	if e.sgeLimit() < 2 {
		e.Skip("the device takes one element")
	}
	src, dst := e.filled(e.a, 1, n), e.buf(e.b, 512)
	cuts := []int{13, 50, n + verbs.GRHLen - 63 + 9} // the GRH ends within the second
	if e.sgeLimit() == 2 {
		cuts = []int{13, n + verbs.GRHLen - 13 + 9}
	}
	dst.paint()
	var sges []verbs.SGE
	for i, m := range cuts {
		sges = append(sges, dst.sge(340-160*i, m))
	}
	e.postRecv(d.b, recv(11, sges...))
	e.do(d.a, d.to(send(1, src.sge(0, n))))
	wc := e.arrived(d.a, d.b, 11, n)
	var got []byte
	for i, m := range cuts {
		m = min(m, verbs.GRHLen+n-len(got))
		at := dst.bytes()[340-160*i:][:m]
		got = append(got, at...)
		for k := range at {
			at[k] = guard
		}
	}
	e.untouched(dst)
	e.same(got[verbs.GRHLen:], payload(1, n))
	if wc.Flags&verbs.WCGRH != 0 {
		grh, err := verbs.ParseGRH(got)
		e.must(err, "ParseGRH")
		if want := e.endpoint(d.a).GID; grh.SGID != want {
			e.Errorf("SGID = %v, want %v", grh.SGID, want)
		}
	}
}

// An address handle that was closed is no address, and others are not affected.
func udClosedAH(e *env) {
	d, dst := e.ud(), e.buf(e.b, 64)
	ah := e.ah(d.a, d.b)
	bad := d.to(sendImm(1, 11))
	bad.AH = ah.Handle()
	e.must(ah.Close(), "Close of an AH")
	e.must(ah.Close(), "second Close of an AH")
	n, err := d.a.PostSend([]verbs.SendWR{bad})
	if n != 0 {
		e.Fatalf("PostSend with a closed AH = %d, %v, want 0", n, err)
	}
	e.refused("PostSend with a closed AH", err, verbs.ErrInvalid, verbs.ErrClosed, verbs.ErrNotFound)
	e.postRecv(d.b, recv(11, dst.sge(0, 64)))
	e.do(d.a, d.to(sendImm(2, 22)))
	if wc := e.arrived(d.a, d.b, 11, 0); wc.Imm != 22 {
		e.Errorf("immediate = %d, want 22", wc.Imm)
	}
}

// What UD does not have ends a chain; what is before it is sent (ibv_post_send(3)).
func udChainStops(e *env) {
	d := e.ud()
	e.refusedOps(d.conn, d.to(sendImm(1, 1)), verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm,
		verbs.OpRDMARead, verbs.OpAtomicCmpAndSwp, verbs.OpAtomicFetchAndAdd)
}

// Every way to name local memory that is not allowed stops the send queue, no more.
func udLocalErrors(e *env) {
	e.needUD()
	for _, tt := range badLocals {
		e.sub(tt.name, func(e *env) {
			d := e.ud()
			e.stopsAndGoesOn(d.conn, d.to, e.towards(d.b, d.a), send(1, tt.sge(e, e.a)))
		})
	}
}

// A UD QP takes its receives from an SRQ too (IBTA 10.2.9).
func udSRQ(e *env) {
	e.needUD()
	e.needSRQ()
	srq := e.newSRQ(e.b, verbs.SRQConfig{MaxWR: 8})
	c := e.conn(connConfig{typ: verbs.UD, srqB: srq})
	out := e.towards(c.a, c.b)
	src, dst := e.filled(e.a, 1, 64), e.buf(e.b, 256)
	e.postRecv(srq, recv(11, dst.sge(0, 128)), recv(12, dst.sge(128, 128)))
	e.post(c.a, out(send(1, src.sge(0, 64))), out(sendImm(2, 22, src.sge(32, 32))))
	e.arrived(c.a, c.b, 11, 64)
	if wc := e.arrived(c.a, c.b, 12, 32); wc.Imm != 22 {
		e.Errorf("immediate = %d, want 22", wc.Imm)
	}
	e.same(dst.bytes()[verbs.GRHLen:][:64], payload(1, 64))
	e.same(dst.bytes()[128+verbs.GRHLen:][:32], payload(1, 64)[32:])
}
