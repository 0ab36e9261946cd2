package verbstest

import (
	"fmt"

	"ibverbx/verbs"
)

var srqTests = []test{
	{"SharedByQPs", srqShared},
	{"InOrder", srqInOrder},
	{"InPostingOrderOverQPs", srqInPostingOrder},
	{"WriteWithImm", srqWriteImm},
	{"EmptyWaits", srqEmptyWaits},
	{"Full", srqFull},
	{"TooManyElements", srqTooManyElements},
	{"LimitEvent", srqLimitEvent},
	{"LimitByConfig", srqLimitByConfig},
	{"LimitRefused", srqLimitRefused},
	{"PostRecvOnQPRefused", srqPostRecvRefused},
	{"BadConfigs", srqBadConfigs},
	{"BadQPConfigs", srqBadQPConfigs},
	{"LastWQEReached", srqLastWQE},
	{"LastWQEByRemoteError", srqLastWQERemote},
	{"FailureTakesOneReceive", srqFailure},
	{"ReceivesSurviveClose", srqSurviveClose},
	{"CloseGivesPlacesBack", srqClosePlaces},
	{"CloseBusy", srqCloseBusy},
}

// onSRQ returns an RC connection whose end B receives from srq.
func (e *env) onSRQ(srq verbs.SRQ) *conn {
	e.Helper()
	return e.conn(connConfig{srqB: srq})
}

// srqConn returns an SRQ on B for at least depth receives and a connection that receives
// from it.
func (e *env) srqConn(depth int) (verbs.SRQ, *conn) {
	e.Helper()
	srq := e.newSRQ(e.b, verbs.SRQConfig{MaxWR: depth})
	return srq, e.onSRQ(srq)
}

// QPs that share a queue each get their own messages, in the order in which they were
// sent; every receive is used once, and wr_id says which (IBTA 10.2.9). Any QP may take
// any receive.
func srqShared(e *env) {
	const qps, each, size = 4, 12, 5000
	cq := e.newCQ(e.b, 2*qps*each, nil)
	srq := e.newSRQ(e.b, verbs.SRQConfig{MaxWR: qps * each})
	src, dst := e.filled(e.a, 1, qps*each*size), e.buf(e.b, qps*each*size)
	for i := range qps * each {
		e.postRecv(srq, recv(uint64(i), dst.sge(i*size, size)))
	}
	conns := make([]*conn, qps)
	ends, next := map[uint32]*end{}, map[uint32]int{}
	for i := range conns {
		c := e.conn(connConfig{srqB: srq, cqB: cq})
		conns[i], ends[c.b.Num()], next[c.b.Num()] = c, c.b, i*each
		for m := i * each; m < (i+1)*each; m++ {
			e.post(c.a, sendImm(uint64(m), uint32(m), src.sge(m*size, size-m)))
		}
	}
	used := map[uint64]bool{}
	for _, wc := range e.wait(cq, qps*each) {
		q := ends[wc.QPN]
		if q == nil || used[wc.WRID] || wc.WRID >= qps*each {
			e.Fatalf("receive with wr_id %d on QP %#x: no such QP, or the receive was used before", wc.WRID, wc.QPN)
		}
		used[wc.WRID] = true
		m := next[wc.QPN]
		next[wc.QPN]++
		e.receivedImm(wc, q, wc.WRID, verbs.WCRecv, size-m, uint32(m))
		e.same(dst.bytes()[int(wc.WRID)*size:][:size-m], src.bytes()[m*size:][:size-m])
	}
	for i, c := range conns {
		e.doneFrom(c.a, uint64(i*each), each, verbs.WCSend)
	}
	e.none(cq)
}

// One QP finds the receives in the order in which they were posted.
func srqInOrder(e *env) {
	srq, c := e.srqConn(16)
	for round := range uint64(4) {
		for id := range uint64(16) {
			e.postRecv(srq, recv(16*round+id))
		}
		for id := range uint64(16) {
			e.post(c.a, sendImm(id, uint32(id)))
		}
		for id, wc := range e.wait(c.b.cq, 16) {
			e.receivedImm(wc, c.b, 16*round+uint64(id), verbs.WCRecv, 0, uint32(id))
		}
		e.doneFrom(c.a, 0, 16, verbs.WCSend)
	}
}

// A message takes the receive that was posted first, whichever QP it comes for (IBTA
// 10.2.9: the queue is consumed from its head). One message is on its way at a time.
func srqInPostingOrder(e *env) {
	srq, first := e.srqConn(8)
	second := e.onSRQ(srq)
	e.postRecv(srq, recv(10), recv(11), recv(12))
	e.postRecv(srq, recv(13), recv(14), recv(15))
	for i, c := range []*conn{first, second, second, first, second, first} {
		e.carry(c, sendImm(1, uint32(i)), uint64(10+i))
	}
}

// WRITE_WITH_IMM takes a receive of the shared queue and leaves its buffer alone; WRITE
// takes none.
func srqWriteImm(e *env) {
	srq, c := e.srqConn(8)
	src, dst, unused := e.filled(e.a, 1, 3000), e.painted(e.b, 3100), e.painted(e.b, 64)
	e.postRecv(srq, recv(10, unused.sge(0, 64)), recv(11))
	e.do(c.a, write(1, dst, 50, src.sge(0, 100)))
	e.carry(c, writeImm(2, 0xabcdef01, dst, 50, src.sge(0, 3000)), 10)
	e.holds(dst, 50, payload(1, 3000))
	e.untouched(unused)
	e.carry(c, sendImm(3, 2), 11)
}

// Senders wait while the shared queue is empty, and each message is delivered once there
// is a receive (IBTA 9.7.5.2.8), as with a QP's own queue.
func srqEmptyWaits(e *env) {
	const size = 9000
	srq := e.newSRQ(e.b, verbs.SRQConfig{MaxWR: 4})
	cq, other := e.newCQ(e.b, 64, nil), e.rc()
	src, dst := e.filled(e.a, 1, 2*size), e.painted(e.b, 2*size+10)
	conns := make([]*conn, 2)
	for i := range conns {
		conns[i] = e.conn(connConfig{srqB: srq, cqB: cq})
		e.post(conns[i].a, sendImm(1, uint32(i), src.sge(i*size, size)))
	}
	e.fence(other)
	e.none(conns[0].a.cq, conns[1].a.cq, cq)
	var came []byte
	for k := range 2 { // which of the two comes first is open
		e.postRecv(srq, recv(uint64(k), dst.sge(5+k*size, size)))
		wc := e.waitOne(cq)
		i := int(wc.Imm & 1)
		e.receivedImm(wc, conns[i].b, uint64(k), verbs.WCRecv, size, uint32(i))
		e.done(conns[i].a, 1, verbs.WCSend)
		came = append(came, src.bytes()[i*size:][:size]...)
	}
	e.holds(dst, 5, came)
	e.postRecv(srq, recv(11))
	e.carry(conns[0], sendImm(2, 2), 11)
}

// A full SRQ is ErrQueueFull; it holds what it says.
func srqFull(e *env) {
	srq, c := e.srqConn(8)
	total := e.fill("SRQ.PostRecv", func(id uint64) (int, error) { return srq.PostRecv([]verbs.RecvWR{recv(id)}) })
	if srq.MaxWR() < 8 || total < srq.MaxWR() {
		e.Fatalf("MaxWR = %d and %d receives fit, want at least 8 and as many as MaxWR says", srq.MaxWR(), total)
	}
	e.carry(c, send(1), 0)
	two := []verbs.RecvWR{recv(7001), recv(7002)}
	e.stops("PostRecv of two receives to an SRQ with one place", 1, verbs.ErrQueueFull)(srq.PostRecv(two))
}

// A receive with more elements than the queue was made for is refused, with all that
// come after it; those before it count. Zero means one element.
func srqTooManyElements(e *env) {
	for name, ask := range map[string]int{"Default": 0, "Most": min(e.b.attr.MaxSRQSGE, verbs.MaxSGE)} {
		e.sub(name, func(e *env) {
			k := max(ask, 1)
			srq := e.newSRQ(e.b, verbs.SRQConfig{MaxWR: 8, MaxSGE: ask})
			c, src, dst := e.onSRQ(srq), e.filled(e.a, 1, 64), e.buf(e.b, 128)
			sges, places := dst.ragged(0, 64, k)
			bad := recv(12)
			bad.NumSGE = uint8(k + 1)
			what, want := fmt.Sprintf("PostRecv with %d elements in the third request", k+1), []error{verbs.ErrInvalid, verbs.ErrLimit}
			if k == verbs.MaxSGE {
				want = want[:1]
			}
			e.stops(what, 2, want...)(srq.PostRecv([]verbs.RecvWR{recv(10, sges...), recv(11), bad, recv(13)}))
			e.postRecv(srq, recv(14))
			e.carry(c, sendImm(1, 1, src.sge(0, 64)), 10)
			e.same(dst.gathered(places, 64), payload(1, 64))
			e.carry(c, sendImm(1, 2), 11)
			e.carry(c, sendImm(1, 3), 14)
		})
	}
}

// A QP with an SRQ has no receive queue of its own.
func srqPostRecvRefused(e *env) {
	srq, c := e.srqConn(8)
	e.stops("PostRecv on a QP with an SRQ", 0)(c.b.PostRecv([]verbs.RecvWR{recv(1)}))
	e.postRecv(srq, recv(2))
	e.carry(c, send(3), 2)
}

// Configurations that make no sense, or ask for more than the device has, are refused.
func srqBadConfigs(e *env) {
	e.newSRQ(e.b, verbs.SRQConfig{MaxWR: 4})
	for name, cfg := range map[string]verbs.SRQConfig{
		"MaxWR 0":   {},
		"MaxWR -1":  {MaxWR: -1},
		"MaxSGE -1": {MaxWR: 4, MaxSGE: -1},
		"Limit -1":  {MaxWR: 4, Limit: -1},
	} {
		e.notMade("CreateSRQ with "+name, verbs.ErrInvalid)(e.b.pd.CreateSRQ(cfg))
	}
	for name, cfg := range map[string]verbs.SRQConfig{
		"MaxWR":  {MaxWR: e.b.attr.MaxSRQWR + 1},
		"MaxSGE": {MaxWR: 4, MaxSGE: max(e.b.attr.MaxSRQSGE, verbs.MaxSGE) + 1},
	} {
		e.notMade("CreateSRQ above the limit of "+name, verbs.ErrInvalid, verbs.ErrLimit)(e.b.pd.CreateSRQ(cfg))
	}
}

// A QP takes an SRQ of its own PD that is open, and has no receive queue beside it.
func srqBadQPConfigs(e *env) {
	own := e.newSRQ(e.b, verbs.SRQConfig{MaxWR: 4})
	closed := e.newSRQ(e.b, verbs.SRQConfig{MaxWR: 4})
	e.must(closed.Close(), "Close of an SRQ without QPs")
	stranger := *e.b
	stranger.pd = e.newPD(e.b)
	foreign := e.newSRQ(&stranger, verbs.SRQConfig{MaxWR: 4})
	cq := e.newCQ(e.b, 16, nil)
	good := verbs.QPConfig{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, MaxSendWR: 4, Port: e.b.port, GID: e.b.gid, SRQ: own}
	for name, change := range map[string]func(cfg *verbs.QPConfig){
		"a receive queue beside the SRQ": func(cfg *verbs.QPConfig) { cfg.MaxRecvWR = 4 },
		"an SRQ of another PD":           func(cfg *verbs.QPConfig) { cfg.SRQ = foreign },
		"an SRQ of another context":      func(cfg *verbs.QPConfig) { cfg.SRQ = e.newSRQ(e.a, verbs.SRQConfig{MaxWR: 4}) },
		"a closed SRQ":                   func(cfg *verbs.QPConfig) { cfg.SRQ = closed },
	} {
		bad, want := good, []error{verbs.ErrInvalid}
		change(&bad)
		if bad.SRQ == closed {
			want = append(want, verbs.ErrClosed)
		}
		e.notMade("CreateQP with "+name, want...)(e.b.pd.CreateQP(bad))
	}
	e.newQP(e.b, good)
	e.must(foreign.Close(), "Close of an SRQ whose QPs were refused") // they are no users of it
}
