package verbstest

import (
	"errors"

	"ibverbx/verbs"
)

var srqTests = []test{
	{"SharedByQPs", srqShared},
	{"InOrder", srqInOrder},
	{"WriteWithImm", srqWriteImm},
	{"EmptyWaits", srqEmptyWaits},
	{"Full", srqFull},
	{"ChainStopsAtBad", srqChain},
	{"LimitEvent", srqLimitEvent},
	{"LimitByConfig", srqLimitByConfig},
	{"LimitTooHigh", srqLimitTooHigh},
	{"PostRecvOnQPRefused", srqPostRecvRefused},
	{"BadConfig", srqBadConfig},
	{"LastWQEReached", srqLastWQE},
	{"FailureTakesOneReceive", srqFailure},
	{"OnUC", srqOnUC},
}

// srqConns returns an SRQ on B and connections that receive from it into one CQ.
func (e *env) srqConns(count int, cfg verbs.SRQConfig) (verbs.SRQ, verbs.CQ, []*conn) {
	e.Helper()
	e.needSRQ()
	srq, cq := e.newSRQ(e.b, cfg), e.newCQ(e.b, 512, nil)
	conns := make([]*conn, count)
	for i := range conns {
		conns[i] = e.conn(connConfig{cqB: cq, srqB: srq})
	}
	return srq, cq, conns
}

// Several QPs take their receives from one queue: each completion names its QP, and
// each receive is used once.
func srqShared(e *env) {
	const qps, each, size = 4, 10, 48
	srq, cq, conns := e.srqConns(qps, verbs.SRQConfig{MaxWR: qps * each})
	src, dst := e.filled(e.a, 1, qps*each*size), e.buf(e.b, qps*each*size)
	for id := range qps * each {
		e.postRecv(srq, recv(uint64(id), dst.sge(id*size, size)))
	}
	byNum := map[uint32]*conn{}
	for i, c := range conns {
		byNum[c.b.Num()] = c
		for k := range each {
			msg := i*each + k
			e.post(c.a, sendImm(uint64(msg), uint32(msg), src.sge(msg*size, size)))
		}
	}
	used := map[uint64]bool{}
	for _, wc := range e.wait(cq, qps*each) {
		c := byNum[wc.QPN]
		if c == nil || used[wc.WRID] || wc.WRID >= qps*each {
			e.Fatalf("receive %d on QP %#x: unknown QP or a receive that was used before", wc.WRID, wc.QPN)
		}
		used[wc.WRID] = true
		e.receivedImm(wc, c.b, wc.WRID, verbs.WCRecv, size, wc.Imm)
		msg := int(wc.Imm)
		if msg >= qps*each || conns[msg/each] != c {
			e.Fatalf("message %d came on QP %#x of another connection", msg, wc.QPN)
		}
		e.same(dst.bytes()[int(wc.WRID)*size:][:size], src.bytes()[msg*size:][:size])
	}
	for i, c := range conns {
		for k, wc := range e.wait(c.a.cq, each) {
			e.ok(wc, c.a, uint64(i*each+k), verbs.WCSend)
		}
	}
}

// One QP finds the receives in the order in which they were posted.
func srqInOrder(e *env) {
	srq, cq, conns := e.srqConns(1, verbs.SRQConfig{MaxWR: 16})
	for round := range uint64(4) {
		for id := range uint64(16) {
			e.postRecv(srq, recv(16*round+id))
		}
		for id := range uint64(16) {
			e.post(conns[0].a, sendImm(id, uint32(id)))
		}
		for id, wc := range e.wait(cq, 16) {
			e.receivedImm(wc, conns[0].b, 16*round+uint64(id), verbs.WCRecv, 0, uint32(id))
		}
		e.wait(conns[0].a.cq, 16)
	}
}

// WRITE_WITH_IMM takes a receive from the SRQ, WRITE none.
func srqWriteImm(e *env) {
	srq, cq, conns := e.srqConns(1, verbs.SRQConfig{MaxWR: 4})
	c, src, dst := conns[0], e.filled(e.a, 1, 64), e.buf(e.b, 64)
	e.postRecv(srq, recv(1), recv(2))
	e.post(c.a, write(3, dst, 0, src.sge(0, 32)), writeImm(4, 44, dst, 32, src.sge(32, 32)), send(5))
	e.receivedImm(e.waitOne(cq), c.b, 1, verbs.WCRecvRDMAWithImm, 32, 44)
	e.same(dst.bytes(), payload(1, 64))
	e.received(e.waitOne(cq), c.b, 2, 0)
}

// A sender waits until the SRQ has a receive, as it does for a QP's own queue.
func srqEmptyWaits(e *env) {
	srq, cq, conns := e.srqConns(2, verbs.SRQConfig{MaxWR: 4})
	other := e.rc()
	e.post(conns[0].a, sendImm(1, 11))
	e.post(conns[1].a, sendImm(2, 22))
	e.fence(other)
	e.none(cq)
	e.postRecv(srq, recv(1))
	first := e.waitOne(cq)
	e.postRecv(srq, recv(2))
	second := e.waitOne(cq)
	if first.Err() != nil || second.Err() != nil || first.Imm+second.Imm != 33 || first.QPN == second.QPN {
		e.Errorf("receives = %v imm %d and %v imm %d, want one message of each QP", first.Err(), first.Imm, second.Err(), second.Imm)
	}
	e.done(conns[0].a, 1, verbs.WCSend)
	e.done(conns[1].a, 2, verbs.WCSend)
}

// A full SRQ is ErrQueueFull; it holds what it says.
func srqFull(e *env) {
	srq, cq, conns := e.srqConns(1, verbs.SRQConfig{MaxWR: 8})
	total := e.fill("SRQ.PostRecv", func(id uint64) (int, error) { return srq.PostRecv([]verbs.RecvWR{recv(id)}) })
	if srq.MaxWR() < 8 || total < srq.MaxWR() {
		e.Fatalf("MaxWR = %d and %d receives fit, want at least 8 and as many as MaxWR says", srq.MaxWR(), total)
	}
	e.post(conns[0].a, send(1))
	e.received(e.waitOne(cq), conns[0].b, 0, 0)
	n, err := srq.PostRecv([]verbs.RecvWR{recv(7001), recv(7002)})
	if n != 1 || !errors.Is(err, verbs.ErrQueueFull) {
		e.Errorf("PostRecv of two receives to an SRQ with one place = %d, %v, want 1, ErrQueueFull", n, err)
	}
}

// n counts the receives before a bad one.
func srqChain(e *env) {
	srq, cq, conns := e.srqConns(1, verbs.SRQConfig{MaxWR: 8})
	bad := recv(3)
	bad.NumSGE = verbs.MaxSGE + 1
	n, err := srq.PostRecv([]verbs.RecvWR{recv(1), recv(2), bad, recv(4)})
	if n != 2 || !errors.Is(err, verbs.ErrInvalid) {
		e.Errorf("PostRecv with a bad third receive = %d, %v, want 2 and ErrInvalid", n, err)
	}
	e.postRecv(srq, recv(5))
	e.post(conns[0].a, send(1), send(2), send(3))
	for _, id := range []uint64{1, 2, 5} {
		e.received(e.waitOne(cq), conns[0].b, id, 0)
	}
}

// limitReached takes the limit events that are there and reports how many.
func (e *env) limitReached(srq verbs.SRQ) int {
	n := 0
	for e.takeEvent(e.b, verbs.EventSRQLimitReached, srq) {
		n++
	}
	return n
}

// The limit event comes once when fewer receives are left than the limit says, and
// again only when the limit was set again (ibv_modify_srq(3)).
func srqLimitEvent(e *env) {
	srq, cq, conns := e.srqConns(1, verbs.SRQConfig{MaxWR: 16})
	c := conns[0]
	take := func(count int) {
		e.Helper()
		for range count {
			e.post(c.a, send(1))
			e.ok(e.waitOne(cq), c.b, 1, verbs.WCRecv)
			e.done(c.a, 1, verbs.WCSend)
		}
	}
	give := func(count int) {
		e.Helper()
		for range count {
			e.postRecv(srq, recv(1))
		}
	}
	give(8)
	take(3) // not armed
	e.must(srq.SetLimit(4), "SetLimit")
	take(1) // 4 left, which is not fewer than 4
	if n := e.limitReached(srq); n != 0 {
		e.Errorf("%d limit events with as many receives left as the limit says", n)
	}
	take(1)
	e.event(e.b, verbs.EventSRQLimitReached, srq)
	take(3) // not armed any more
	give(8)
	e.must(srq.SetLimit(8), "SetLimit again")
	take(1)
	e.event(e.b, verbs.EventSRQLimitReached, srq)
	give(8)
	e.must(srq.SetLimit(3), "SetLimit")
	e.must(srq.SetLimit(0), "SetLimit(0)")
	take(14)
	give(4)
	e.must(srq.SetLimit(5), "SetLimit to what is there")
	take(1)
	e.event(e.b, verbs.EventSRQLimitReached, srq)
	if n := e.limitReached(srq); n != 0 {
		e.Errorf("%d limit events more than limits that were set", n)
	}
}

// SRQConfig.Limit arms the event from the start. A new SRQ has fewer receives than
// that, so the event may come at once or when the limit is reached from above.
func srqLimitByConfig(e *env) {
	srq, cq, conns := e.srqConns(1, verbs.SRQConfig{MaxWR: 8, Limit: 2})
	e.postRecv(srq, recv(1), recv(2), recv(3))
	e.post(conns[0].a, send(1), send(2))
	e.received(e.waitOne(cq), conns[0].b, 1, 0)
	e.received(e.waitOne(cq), conns[0].b, 2, 0)
	e.event(e.b, verbs.EventSRQLimitReached, srq)
}

// A limit that is never reached from above is refused.
func srqLimitTooHigh(e *env) {
	e.needSRQ()
	srq := e.newSRQ(e.b, verbs.SRQConfig{MaxWR: 8})
	e.refused("SetLimit above MaxWR", srq.SetLimit(srq.MaxWR()+1), verbs.ErrInvalid, verbs.ErrLimit)
	e.refused("SetLimit below 0", srq.SetLimit(-1), verbs.ErrInvalid)
	e.must(srq.SetLimit(srq.MaxWR()), "SetLimit to MaxWR")
}

// A QP with an SRQ has no receive queue of its own.
func srqPostRecvRefused(e *env) {
	srq, cq, conns := e.srqConns(1, verbs.SRQConfig{MaxWR: 8})
	n, err := conns[0].b.PostRecv([]verbs.RecvWR{recv(1)})
	if n != 0 || err == nil {
		e.Errorf("PostRecv on a QP with an SRQ = %d, %v, want 0 and an error", n, err)
	}
	e.postRecv(srq, recv(2))
	e.post(conns[0].a, send(3))
	e.received(e.waitOne(cq), conns[0].b, 2, 0)
}

// What an SRQ cannot be is refused.
func srqBadConfig(e *env) {
	e.needSRQ()
	for _, cfg := range []verbs.SRQConfig{{}, {MaxWR: -1}, {MaxWR: 4, MaxSGE: -1}, {MaxWR: 4, Limit: -1}} {
		_, err := e.b.pd.CreateSRQ(cfg)
		e.refused("CreateSRQ with a bad configuration", err, verbs.ErrInvalid)
	}
	cq := e.newCQ(e.b, 4, nil)
	cfg := verbs.QPConfig{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, MaxSendWR: 1, SRQ: e.newSRQ(e.b, verbs.SRQConfig{MaxWR: 4})}
	both := cfg
	both.MaxRecvWR = 1
	_, err := e.b.pd.CreateQP(both)
	e.refused("CreateQP with an SRQ and a receive queue", err, verbs.ErrInvalid)
	_, err = e.newPD(e.b).CreateQP(cfg)
	e.refused("CreateQP with an SRQ of another PD", err, verbs.ErrInvalid)
}

// When a QP with an SRQ is in the error state and takes no more receives an event says
// so; its receives in the SRQ stay for the others (IBTA 11.6.3).
func srqLastWQE(e *env) {
	srq, cq, conns := e.srqConns(2, verbs.SRQConfig{MaxWR: 8})
	e.postRecv(srq, recv(1), recv(2))
	e.toErr(conns[0].b)
	e.event(e.b, verbs.EventLastWQEReached, conns[0].b.QP)
	e.post(conns[1].a, send(1), send(2))
	e.received(e.waitOne(cq), conns[1].b, 1, 0)
	e.received(e.waitOne(cq), conns[1].b, 2, 0)
	e.none(cq)
}

// A message that does not fit fails one receive and one connection.
func srqFailure(e *env) {
	srq, cq, conns := e.srqConns(2, verbs.SRQConfig{MaxWR: 8})
	src, dst := e.buf(e.a, 64), e.buf(e.b, 64)
	e.postRecv(srq, recv(1, dst.sge(0, 8)), recv(2, dst.sge(8, 8)))
	e.post(conns[0].a, send(1, src.sge(0, 9)))
	e.failed(e.waitOne(cq), conns[0].b, 1, verbs.StatusLocLenErr)
	e.fails(conns[0].a, 1, e.answer(verbs.StatusRemInvReqErr)...)
	e.inState(conns[0].b, verbs.StateErr)
	e.event(e.b, verbs.EventLastWQEReached, conns[0].b.QP)
	e.post(conns[1].a, send(2, src.sge(0, 8)))
	e.received(e.waitOne(cq), conns[1].b, 2, 8)
	e.done(conns[1].a, 2, verbs.WCSend)
}

// UC QPs may use an SRQ if the device says so.
func srqOnUC(e *env) {
	e.needSRQ()
	e.needUC()
	e.needCap(verbs.CapSRQOnUC, "CapSRQOnUC")
	e.needLossless("UC loses messages")
	srq := e.newSRQ(e.b, verbs.SRQConfig{MaxWR: 8})
	c := e.conn(connConfig{typ: verbs.UC, srqB: srq})
	e.postRecv(srq, recv(1), recv(2))
	e.post(c.a, sendImm(3, 33), send(4))
	e.getsImm(c.b, 1, verbs.WCRecv, 0, 33)
	e.gets(c.b, 2, 0)
}
