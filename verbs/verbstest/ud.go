package verbstest

import (
	"fmt"

	"ibverbx/verbs"
)

var udTests = []test{
	{"Send", udSendSizes},
	{"Immediate", udImmediate},
	{"Reply", udReply},
	{"OneToMany", udOneToMany},
	{"GatherScatter", udGather},
	{"Inline", udInline},
	{"WrongQKeyDrops", udWrongQKey},
	{"ControlledQKey", udControlledQKey},
	{"WrongQPNDrops", udWrongQPN},
	{"NoReceiveDrops", udNoReceive},
	{"TooLong", udTooLong},
	{"ReceiveTooSmall", udReceiveTooSmall},
	{"OtherOpcodesRefused", udOtherOpcodes},
	{"BadAH", udBadAH},
	{"LocalErrorIsSQE", udSQE},
}

// datagrams is two UD QPs and the way from one to the other.
type datagrams struct {
	*conn
	ah   verbs.AH
	qkey uint32 // of b
	mtu  int
}

func (e *env) ud() *datagrams {
	e.Helper()
	e.needUD()
	cfg := connConfig{typ: verbs.UD, inline: e.inlineSize(), sges: e.sgeLimit()}
	c := e.conn(cfg)
	port := e.queryPort(e.a)
	remote := e.endpoint(c.b)
	return &datagrams{conn: c, ah: e.ah(c.a, c.b), qkey: remote.QKey, mtu: min(port.ActiveMTU, remote.MTU).Bytes()}
}

// to makes w a datagram for b.
func (d *datagrams) to(w verbs.SendWR) verbs.SendWR {
	w.AH, w.RemoteQPN, w.RemoteQKey = d.ah.Handle(), d.b.Num(), d.qkey
	return w
}

// arrived takes a datagram of n bytes from q's CQ: it names the sender and counts the
// area for the GRH (ibv_poll_cq(3)).
func (e *env) arrived(from, q *end, id uint64, n int) verbs.WC {
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

// Datagrams of all sizes up to the MTU arrive behind 40 bytes for the GRH.
func udSendSizes(e *env) {
	d := e.ud()
	for _, n := range []int{0, 1, 7, 255, 256, d.mtu - 1, d.mtu} {
		e.sub(fmt.Sprintf("size=%d", n), func(e *env) {
			src, dst := e.buf(e.a, n+8), e.painted(e.b, n+verbs.GRHLen+32)
			src.put(3, payload(uint64(n), n))
			e.postRecv(d.b, recv(1, dst.sge(5, n+verbs.GRHLen+9)))
			e.do(d.a, d.to(send(2, src.part(3, n)...)))
			if wc := e.arrived(d.a, d.b, 1, n); wc.Flags&verbs.WCWithImm != 0 {
				e.Error("a datagram without an immediate has one")
			}
			for i := range verbs.GRHLen { // may hold anything if there is no GRH
				dst.bytes()[5+i] = guard
			}
			e.holds(dst, 5+verbs.GRHLen, payload(uint64(n), n))
		})
	}
}

// A datagram carries an immediate if it was sent with one.
func udImmediate(e *env) {
	d, dst := e.ud(), e.buf(e.b, 128)
	e.postRecv(d.b, recv(1, dst.sge(0, 128)), recv(2, dst.sge(0, 128)))
	e.post(d.a, d.to(sendImm(3, 0x01020304)), d.to(send(4)))
	if wc := e.arrived(d.a, d.b, 1, 0); wc.Flags&verbs.WCWithImm == 0 || wc.Imm != 0x01020304 {
		e.Errorf("immediate = %#x, flags %#x, want 0x01020304", wc.Imm, uint8(wc.Flags))
	}
	if wc := e.arrived(d.a, d.b, 2, 0); wc.Flags&verbs.WCWithImm != 0 {
		e.Error("a datagram without an immediate has one")
	}
}

// The GRH of a datagram names sender and receiver, and leads back to the sender.
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
	e.post(d.b, reply)
	e.done(d.b, 4, verbs.WCSend)
	e.done(d.a, 2, verbs.WCSend)
	e.arrived(d.b, d.a, 3, 32)
	e.same(back.bytes()[verbs.GRHLen:][:32], payload(1, 32))
}

// One QP sends to several, and one address handle serves all of a port.
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
		e.post(d.a, w)
		e.done(d.a, uint64(i), verbs.WCSend)
	}
	for i, q := range peers {
		e.arrived(d.a, q, uint64(i), 8)
		e.same(bufs[i].bytes()[verbs.GRHLen:][:8], payload(uint64(i), 8))
		e.none(q.cq)
	}
}

// Elements are gathered and scattered as on other QPs; the GRH may have one of its own.
func udGather(e *env) {
	d, k := e.ud(), e.sgeLimit()
	if k < 2 {
		e.Skip("the device takes one element")
	}
	src, grh, dst := e.buf(e.a, 200), e.buf(e.b, verbs.GRHLen), e.buf(e.b, 128)
	sges, places := src.ragged(0, 100, k)
	rest := payload(1, 100)
	for _, p := range places {
		src.put(p[0], rest[:p[1]])
		rest = rest[p[1]:]
	}
	dst.paint()
	e.postRecv(d.b, recv(1, grh.sge(0, verbs.GRHLen), dst.sge(3, 120)))
	e.post(d.a, d.to(send(2, sges...)))
	e.arrived(d.a, d.b, 1, 100)
	e.holds(dst, 3, payload(1, 100))
}

// Inline bytes are taken at post time on UD too.
func udInline(e *env) {
	n := e.inlineSize()
	d, src, dst := e.ud(), e.filled(e.a, 1, n), e.buf(e.b, n+verbs.GRHLen)
	e.postRecv(d.b, recv(1, dst.sge(0, n+verbs.GRHLen)))
	e.post(d.a, flagged(d.to(send(2, src.sge(0, n))), verbs.SendInline))
	src.paint()
	e.arrived(d.a, d.b, 1, n)
	e.same(dst.bytes()[verbs.GRHLen:], payload(1, n))
}
