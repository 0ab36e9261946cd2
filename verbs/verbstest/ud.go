package verbstest

import (
	"fmt"
	"slices"

	"ibverbx/verbs"
)

var udTests = []test{
	{"Send", udSendSizes},
	{"Immediate", udImmediate},
	{"Reply", udReply},
	{"OneToMany", udOneToMany},
	{"TwoSenders", udTwoSenders},
	{"GatherScatter", udGather},
	{"GRHSplit", udGRHSplit},
	{"Inline", udInline},
	{"SharedReceiveQueue", udSRQ},
	{"WrongQKeyDrops", udWrongQKey},
	{"ControlledQKey", udControlledQKey},
	{"WrongQPNDrops", udWrongQPN},
	{"NoReceiveDrops", udNoReceive},
	{"TooLong", udTooLong},
	{"ReceiveTooSmall", udReceiveTooSmall},
	{"OtherOpcodesRefused", udOtherOpcodes},
	{"BadAH", udBadAH},
	{"LocalErrors", udLocalErrors},
}

// datagrams is two UD QPs and the path between them.
type datagrams struct {
	*conn
	to  outfit // addresses a send of a to b
	mtu int    // longest datagram, in bytes
}

func (e *env) ud() *datagrams {
	e.Helper()
	e.needUD()
	c := e.conn(connConfig{typ: verbs.UD, inline: e.inlineSize(), sges: e.sgeLimit()})
	mtu := min(e.queryPort(e.a).ActiveMTU, e.endpoint(c.b).MTU)
	return &datagrams{conn: c, to: e.towards(c.a, c.b), mtu: mtu.Bytes()}
}

// towards returns a function that addresses from's sends to to.
func (e *env) towards(from, to *end) outfit {
	e.Helper()
	ah, qkey := e.ah(from, to), e.endpoint(to).QKey
	return func(w verbs.SendWR) verbs.SendWR {
		w.AH, w.RemoteQPN, w.RemoteQKey = ah.Handle(), to.Num(), qkey
		return w
	}
}

// datagram takes a datagram of n bytes from q's CQ and checks the sender. The length includes the
// GRH area (ibv_poll_cq(3)).
func (e *env) datagram(from, q *end, id uint64, n int) verbs.WC {
	e.Helper()
	wc := e.waitOne(q.cq)
	e.ok(wc, q, id, verbs.WCRecv)
	if wc.ByteLen != uint32(verbs.GRHLen+n) || wc.SrcQPN != from.Num() {
		e.Fatalf("datagram of %d bytes from QP %#x, want %d from %#x", wc.ByteLen, wc.SrcQPN, verbs.GRHLen+n, from.Num())
	}
	port := e.queryPort(q.side)
	if port.LinkLayer == verbs.LinkLayerEthernet && wc.Flags&verbs.WCGRH == 0 {
		e.Errorf("flags = %#x without WCGRH; over Ethernet there is always one", uint8(wc.Flags))
	}
	return wc
}

// arrived takes a datagram without an immediate from q's CQ.
func (e *env) arrived(from, q *end, id uint64, n int) verbs.WC {
	e.Helper()
	wc := e.datagram(from, q, id, n)
	if wc.Flags&verbs.WCWithImm != 0 {
		e.Error("a datagram without an immediate has one")
	}
	return wc
}

// arrivedImm takes a datagram with an immediate from q's CQ.
func (e *env) arrivedImm(from, q *end, id uint64, n int, imm uint32) {
	e.Helper()
	if wc := e.datagram(from, q, id, n); wc.Flags&verbs.WCWithImm == 0 || wc.Imm != imm {
		e.Errorf("immediate of the datagram = %#x, flags %#x, want %#x", wc.Imm, uint8(wc.Flags), imm)
	}
}

// Datagrams of all sizes up to the MTU arrive after 40 bytes reserved for the GRH.
func udSendSizes(e *env) {
	d := e.ud()
	for _, n := range []int{0, 1, 7, 255, 256, d.mtu - 1, d.mtu} {
		e.sub(fmt.Sprintf("size=%d", n), func(e *env) {
			src, dst := e.buf(e.a, n+8), e.painted(e.b, n+verbs.GRHLen+32)
			src.put(3, payload(uint64(n), n))
			e.postRecv(d.b, recv(1, dst.sge(5, n+verbs.GRHLen+9)))
			e.do(d.a, d.to(send(2, src.part(3, n)...)))
			e.arrived(d.a, d.b, 1, n)
			dst.paintAt(5, verbs.GRHLen) // undefined without a GRH
			e.holds(dst, 5+verbs.GRHLen, payload(uint64(n), n))
		})
	}
}

// A datagram carries an immediate if it was sent with one.
func udImmediate(e *env) {
	d, dst := e.ud(), e.buf(e.b, 128)
	e.postRecv(d.b, recv(1, dst.sge(0, 128)), recv(2, dst.sge(0, 128)))
	e.post(d.a, d.to(sendImm(3, 0x01020304)), d.to(send(4)))
	e.arrivedImm(d.a, d.b, 1, 0, 0x01020304)
	e.arrived(d.a, d.b, 2, 0)
}

// The GRH of a datagram names sender and receiver and can be used to reply.
func udReply(e *env) {
	d, dst, back := e.ud(), e.buf(e.b, 128), e.buf(e.a, 128)
	e.postRecv(d.b, recv(1, dst.sge(0, 128)))
	e.post(d.a, d.to(send(2)))
	wc := e.arrived(d.a, d.b, 1, 0)
	if wc.Flags&verbs.WCGRH == 0 {
		e.Skip("the datagram came without a GRH")
	}
	grh, err := verbs.ParseGRH(dst.bytes())
	e.must(err, "ParseGRH")
	epA, epB := e.endpoint(d.a), e.endpoint(d.b)
	if grh.SGID != epA.GID || grh.DGID != epB.GID {
		e.Errorf("GRH from %v to %v, want from %v to %v", grh.SGID, grh.DGID, epA.GID, epB.GID)
	}
	ah, err := e.b.pd.CreateAH(grh.Reply(e.b.port, e.gidIndex(e.b, epB.GID)))
	e.must(err, "CreateAH for the way back")
	e.closeLater("AH", ah)
	dst.put(64, payload(1, 32))
	e.postRecv(d.a, recv(3, back.sge(0, 128)))
	reply := send(4, dst.sge(64, 32))
	reply.AH, reply.RemoteQPN, reply.RemoteQKey = ah.Handle(), wc.SrcQPN, epA.QKey
	e.do(d.b, reply)
	e.done(d.a, 2, verbs.WCSend)
	e.arrived(d.b, d.a, 3, 32)
	e.same(back.bytes()[verbs.GRHLen:][:32], payload(1, 32))
}

// One QP can send to several, and one address handle serves all QPs of a port.
func udOneToMany(e *env) {
	d := e.ud()
	src := e.buf(e.a, 8)
	peers := []*end{d.b}
	for range 4 {
		q := e.newQP(e.b, verbs.QPConfig{Type: verbs.UD, MaxSendWR: 4, MaxRecvWR: 4})
		e.must(q.Connect(verbs.Endpoint{}), "Connect")
		peers = append(peers, q)
	}
	bufs := make([]*buf, len(peers))
	for i, q := range peers {
		bufs[i] = e.buf(e.b, 64)
		e.postRecv(q, recv(uint64(i), bufs[i].sge(0, 64)))
	}
	for i, q := range peers {
		src.put(0, payload(uint64(i), 8))
		w := d.to(send(uint64(i), src.sge(0, 8)))
		w.RemoteQPN, w.RemoteQKey = q.Num(), e.endpoint(q).QKey
		e.do(d.a, w)
	}
	for i, q := range peers {
		e.arrived(d.a, q, uint64(i), 8)
		e.same(bufs[i].bytes()[verbs.GRHLen:][:8], payload(uint64(i), 8))
		e.expectEmpty(q.cq)
	}
}

// A receiver distinguishes its senders by SrcQPN, whichever side they are on.
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
			e.do(q, e.towards(q, d.b)(sendImm(1, imm)))
			e.arrivedImm(q, d.b, 11, 0, imm)
		}
	}
}

// Elements are gathered and scattered as on other QPs; the GRH may have a separate element.
func udGather(e *env) {
	d, k := e.ud(), e.sgeLimit()
	if k < 2 {
		e.Skip("the device takes one element")
	}
	src, grh, dst := e.buf(e.a, 200), e.buf(e.b, verbs.GRHLen), e.painted(e.b, 128)
	sges := src.spread(k, payload(1, 100))
	e.postRecv(d.b, recv(1, grh.sge(0, verbs.GRHLen), dst.sge(3, 120)))
	e.post(d.a, d.to(send(2, sges...)))
	e.arrived(d.a, d.b, 1, 100)
	e.holds(dst, 3, payload(1, 100))
}

// The GRH area and the payload are contiguous, wherever the elements of the receive split them
// (ibv_post_recv(3)).
func udGRHSplit(e *env) {
	const n = 100
	d := e.ud()
	if e.sgeLimit() < 2 {
		e.Skip("the device takes one element")
	}
	src, dst := e.filled(e.a, 1, n), e.painted(e.b, 512)
	places := [][2]int{{340, 13}, {180, 50}, {20, n + verbs.GRHLen - 63 + 9}} // the GRH ends within the second
	if e.sgeLimit() == 2 {
		places = [][2]int{{340, 13}, {180, n + verbs.GRHLen - 13 + 9}}
	}
	var sges []verbs.SGE
	for _, p := range places {
		sges = append(sges, dst.sge(p[0], p[1]))
	}
	e.postRecv(d.b, recv(11, sges...))
	e.do(d.a, d.to(send(1, src.sge(0, n))))
	wc := e.arrived(d.a, d.b, 11, n)
	got := dst.gathered(places, verbs.GRHLen+n)
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

// Inline data is copied at post time on UD too.
func udInline(e *env) {
	n := e.inlineSize()
	d, src, dst := e.ud(), e.filled(e.a, 1, n), e.buf(e.b, n+verbs.GRHLen)
	e.postRecv(d.b, recv(1, dst.sge(0, n+verbs.GRHLen)))
	e.post(d.a, flagged(d.to(send(2, src.sge(0, n))), verbs.SendInline))
	src.paint()
	e.arrived(d.a, d.b, 1, n)
	e.same(dst.bytes()[verbs.GRHLen:], payload(1, n))
}

// A UD QP can use an SRQ too (IBTA 10.2.9).
func udSRQ(e *env) {
	e.needUD()
	srq := e.newSRQ(e.b, verbs.SRQConfig{MaxWR: 8})
	c := e.conn(connConfig{typ: verbs.UD, srqB: srq})
	out := e.towards(c.a, c.b)
	src, dst := e.filled(e.a, 1, 64), e.buf(e.b, 256)
	e.postRecv(srq, recv(11, dst.sge(0, 128)), recv(12, dst.sge(128, 128)))
	e.post(c.a, out(send(1, src.sge(0, 64))), out(sendImm(2, 22, src.sge(32, 32))))
	e.arrived(c.a, c.b, 11, 64)
	e.arrivedImm(c.a, c.b, 12, 32, 22)
	e.same(dst.bytes()[verbs.GRHLen:][:64], payload(1, 64))
	e.same(dst.bytes()[128+verbs.GRHLen:][:32], payload(1, 64)[32:])
}

// dropped sends an invalid datagram, then one for d.b, and checks that only the second arrives.
// Datagrams of one QP to one port keep their order.
func (e *env) dropped(d *datagrams, bad verbs.SendWR) {
	e.Helper()
	dst := e.painted(e.b, 128)
	e.postRecv(d.b, recv(11, dst.sge(0, 64)), recv(12, dst.sge(64, 64)))
	e.do(d.a, bad, d.to(sendImm(2, 22)))
	e.arrivedImm(d.a, d.b, 11, 0, 22)
	e.expectEmpty(d.b.cq)
	e.bothIn(d.conn, verbs.StateRTS)
}

// A datagram with a wrong Q_Key is dropped silently (IBTA chapter 10, Q_Keys).
func udWrongQKey(e *env) {
	d := e.ud()
	bad := d.to(sendImm(1, 11))
	bad.RemoteQKey ^= 1
	e.dropped(d, bad)
}

// A Q_Key with the high bit set selects the Q_Key of the sending QP (IBTA chapter 10, Q_Keys).
func udControlledQKey(e *env) {
	d, dst := e.ud(), e.buf(e.b, 64)
	if a, b := e.endpoint(d.a).QKey, e.endpoint(d.b).QKey; a != b {
		e.Fatalf("Q_Keys of two new QPs are %#x and %#x, want the default for both", a, b)
	}
	wr := d.to(sendImm(1, 11))
	wr.RemoteQKey = 0x80000000
	e.postRecv(d.b, recv(1, dst.sge(0, 64)))
	e.post(d.a, wr)
	e.arrivedImm(d.a, d.b, 1, 0, 11)
}

// A datagram to a nonexistent QP, or to one of another type, is dropped.
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
		e.expectEmpty(c.b.cq)
		e.inState(c.b, verbs.StateRTS)
	})
}

// A datagram without a receive is dropped, and the next one arrives. On a slow device the first may
// still be on its way when the receive is posted and then gets it; that may happen a few times, but
// not always.
func udNoReceive(e *env) {
	d, other, dst := e.ud(), e.rc(), e.buf(e.b, 64)
	for try := range uint32(20) {
		e.do(d.a, d.to(sendImm(1, 2*try)))
		e.fence(other)
		e.fence(other)
		e.postRecv(d.b, recv(11, dst.sge(0, 64)))
		e.do(d.a, d.to(sendImm(2, 2*try+1)))
		wc := e.datagram(d.a, d.b, 11, 0)
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

// A datagram is a single packet: a longer message is refused, or completes with LOC_LEN_ERR (IBTA
// 11.6.2; ibv_post_send(3) allows an immediate error).
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
		e.move(d.a, verbs.StateRTS)
	}
	e.post(d.a, d.to(sendImm(2, 22)))
	e.arrivedImm(d.a, d.b, 11, 0, 22)
}

// A datagram longer than its receive is dropped, or fails the receive with LOC_LEN_ERR. UD cannot
// respond, and hardware does either; bytes beyond the buffer are never written.
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
		// It is also unspecified whether the QP keeps working.
		if wc := e.waitOne(d.b.cq); wc.WRID != 12 || !slices.Contains([]verbs.Status{verbs.StatusSuccess, verbs.StatusWRFlushErr}, wc.Status) {
			e.Errorf("second receive = wr_id %d, %v, want wr_id 12", wc.WRID, wc.Status)
		}
	}
	e.guarded(dst, verbs.GRHLen+8, 128)
}

// UD supports only SEND: a chain stops at any other opcode, and the requests before it are sent
// (ibv_post_send(3)).
func udOtherOpcodes(e *env) {
	d := e.ud()
	e.refusedOps(d.conn, d.to(sendImm(1, 1)), verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm,
		verbs.OpRDMARead, verbs.OpAtomicCmpAndSwp, verbs.OpAtomicFetchAndAdd)
}

// A datagram needs an open address handle of its own PD: otherwise it is refused when posted or
// fails locally, and does not arrive. Others are not affected.
func udBadAH(e *env) {
	for name, bad := range map[string]func(e *env, d *datagrams) verbs.AHHandle{
		"None": func(*env, *datagrams) verbs.AHHandle { return 0 },
		"OtherPD": func(e *env, d *datagrams) verbs.AHHandle {
			return e.ah(&end{QP: d.a, side: e.otherPD(e.a)}, d.b).Handle()
		},
		"Closed": func(e *env, d *datagrams) verbs.AHHandle {
			ah := e.ah(d.a, d.b)
			e.must(ah.Close(), "Close of an AH")
			e.must(ah.Close(), "second Close of an AH")
			return ah.Handle()
		},
	} {
		e.sub(name, func(e *env) {
			d, dst := e.ud(), e.buf(e.b, 64)
			wr := d.to(sendImm(1, 11))
			wr.AH = bad(e, d)
			n, err := d.a.PostSend([]verbs.SendWR{wr})
			switch {
			case name == "Closed":
				e.rejectsPost("PostSend with a closed AH", 0, verbs.ErrInvalid, verbs.ErrClosed, verbs.ErrNotFound)(n, err)
			case n == 0:
				e.refused("PostSend with a bad AH", err, verbs.ErrInvalid)
			default:
				e.fails(d.a, 1, verbs.StatusLocQPOpErr, verbs.StatusLocProtErr)
				e.move(d.a, verbs.StateRTS)
			}
			e.postRecv(d.b, recv(11, dst.sge(0, 64)))
			e.do(d.a, d.to(sendImm(2, 22)))
			e.arrivedImm(d.a, d.b, 11, 0, 22)
		})
	}
}

// Every kind of local memory error moves a UD QP to SQE, where it recovers like a UC QP.
func udLocalErrors(e *env) {
	e.needUD()
	for _, tt := range badLocals {
		e.sub(tt.name, func(e *env) {
			d := e.ud()
			e.failsIntoSQE(d.conn, d.to, e.towards(d.b, d.a), send(1, tt.sge(e, e.a)))
		})
	}
}
