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

// srqConn returns an SRQ on B with at least depth receives, and a connection that uses it.
func (e *env) srqConn(depth int) (verbs.SRQ, *conn) {
	e.Helper()
	srq := e.newSRQ(e.b, verbs.SRQConfig{MaxWR: depth})
	return srq, e.onSRQ(srq)
}

// QPs that share a queue each get their own messages in sending order; every receive is used once
// and identified by its wr_id (IBTA 10.2.9). Any QP may consume any receive.
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
	e.expectEmpty(cq)
}

// A single QP consumes receives in posting order.
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

// A message consumes the oldest receive, whichever QP it is for (IBTA 10.2.9: the queue is consumed
// from its head). Only one message is in flight.
func srqInPostingOrder(e *env) {
	srq, first := e.srqConn(8)
	second := e.onSRQ(srq)
	e.postRecv(srq, recv(10), recv(11), recv(12))
	e.postRecv(srq, recv(13), recv(14), recv(15))
	for i, c := range []*conn{first, second, second, first, second, first} {
		e.carry(c, sendImm(1, uint32(i)), uint64(10+i))
	}
}

// WRITE_WITH_IMM consumes a receive of the shared queue without touching its buffer; WRITE consumes
// none.
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

// Senders wait while the shared queue is empty, and each message is delivered exactly once after a
// receive is posted (IBTA 9.7.5.2.8), as with a QP's own queue.
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
	e.expectEmpty(conns[0].a.cq, conns[1].a.cq, cq)
	var came []byte
	for k := range 2 { // in either order
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

// Posting to a full SRQ returns ErrQueueFull; an SRQ holds at least MaxWR receives.
func srqFull(e *env) {
	srq, c := e.srqConn(8)
	total := e.fill("SRQ.PostRecv", func(id uint64) (int, error) { return srq.PostRecv([]verbs.RecvWR{recv(id)}) })
	if srq.MaxWR() < 8 || total < srq.MaxWR() {
		e.Fatalf("MaxWR = %d and %d receives fit, want at least 8 and as many as MaxWR says", srq.MaxWR(), total)
	}
	e.carry(c, send(1), 0)
	two := []verbs.RecvWR{recv(7001), recv(7002)}
	e.rejectsPost("PostRecv of two receives to an SRQ with one place", 1, verbs.ErrQueueFull)(srq.PostRecv(two))
}

// A receive with more elements than the queue allows is refused, together with the rest of its
// chain; receives before it are posted. Zero means one element.
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
			e.rejectsPost(what, 2, want...)(srq.PostRecv([]verbs.RecvWR{recv(10, sges...), recv(11), bad, recv(13)}))
			e.postRecv(srq, recv(14))
			e.carry(c, sendImm(1, 1, src.sge(0, 64)), 10)
			e.same(dst.gathered(places, 64), payload(1, 64))
			e.carry(c, sendImm(1, 2), 11)
			e.carry(c, sendImm(1, 3), 14)
		})
	}
}

// A QP with an SRQ refuses PostRecv.
func srqPostRecvRefused(e *env) {
	srq, c := e.srqConn(8)
	e.rejectsPost("PostRecv on a QP with an SRQ", 0)(c.b.PostRecv([]verbs.RecvWR{recv(1)}))
	e.postRecv(srq, recv(2))
	e.carry(c, send(3), 2)
}

// Inconsistent configurations are refused (device/LimitsRefuse covers excessive ones).
func srqBadConfigs(e *env) {
	e.newSRQ(e.b, verbs.SRQConfig{MaxWR: 4})
	for name, cfg := range map[string]verbs.SRQConfig{
		"MaxWR 0":   {},
		"MaxWR -1":  {MaxWR: -1},
		"MaxSGE -1": {MaxWR: 4, MaxSGE: -1},
		"Limit -1":  {MaxWR: 4, Limit: -1},
	} {
		e.rejectsCreate("CreateSRQ with "+name, verbs.ErrInvalid)(e.b.pd.CreateSRQ(cfg))
	}
}

// A QP accepts only an open SRQ of its own PD, and then must not have a receive queue itself.
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
		e.rejectsCreate("CreateQP with "+name, want...)(e.b.pd.CreateQP(bad))
	}
	e.newQP(e.b, good)
	e.must(foreign.Close(), "Close of an SRQ whose QPs were refused") // refused QPs do not use it
}

// consumeReceives sends count messages over c, each of which consumes a receive with wr_id 1.
func (e *env) consumeReceives(c *conn, count int) {
	e.Helper()
	for range count {
		e.carry(c, send(1), 1)
	}
}

// noLimitEvent fails the test if srq has raised a limit event.
func (e *env) noLimitEvent(srq verbs.SRQ, when string) {
	e.Helper()
	if e.takeEvent(e.b, verbs.EventSRQLimitReached, srq) {
		e.Errorf("a limit event %s, want none", when)
	}
}

// The limit event is raised once when fewer receives remain than the limit, and again only after
// the limit is set again (ibv_modify_srq(3)).
func srqLimitEvent(e *env) {
	srq, c := e.srqConn(16)
	give := func(count int) {
		e.Helper()
		for range count {
			e.postRecv(srq, recv(1))
		}
	}
	give(8)
	e.consumeReceives(c, 3) // not armed
	e.must(srq.SetLimit(4), "SetLimit")
	e.consumeReceives(c, 1)
	e.noLimitEvent(srq, "with as many receives left as the limit says")
	e.consumeReceives(c, 1)
	e.event(e.b, verbs.EventSRQLimitReached, srq)
	e.consumeReceives(c, 3) // no longer armed
	give(8)
	e.must(srq.SetLimit(8), "SetLimit again")
	e.consumeReceives(c, 1)
	e.event(e.b, verbs.EventSRQLimitReached, srq)
	give(8)
	e.must(srq.SetLimit(3), "SetLimit")
	e.must(srq.SetLimit(0), "SetLimit(0)")
	e.consumeReceives(c, 14)
	give(4)
	e.must(srq.SetLimit(5), "SetLimit to what is there")
	e.consumeReceives(c, 1)
	e.event(e.b, verbs.EventSRQLimitReached, srq)
	e.noLimitEvent(srq, "more than limits that were set")
}

// SRQConfig.Limit arms the event from the start. A new SRQ has fewer receives than
// that, so the event may come at once or when the limit is reached from above.
func srqLimitByConfig(e *env) {
	srq := e.newSRQ(e.b, verbs.SRQConfig{MaxWR: 8, Limit: 2})
	c := e.onSRQ(srq)
	e.postRecv(srq, recv(1), recv(1), recv(1))
	e.consumeReceives(c, 2)
	e.event(e.b, verbs.EventSRQLimitReached, srq)
}

// A limit above the queue's capacity is refused without an effect (ibv_modify_srq(3)).
func srqLimitRefused(e *env) {
	srq, c := e.srqConn(8)
	e.postRecv(srq, recv(1), recv(1), recv(1))
	e.must(srq.SetLimit(2), "SetLimit(2)")
	e.refused("SetLimit(-1)", srq.SetLimit(-1), verbs.ErrInvalid)
	e.refused("SetLimit(MaxWR+1)", srq.SetLimit(srq.MaxWR()+1), verbs.ErrInvalid, verbs.ErrLimit)
	e.consumeReceives(c, 1)
	e.noLimitEvent(srq, "with 2 receives left and a limit of 2")
	e.consumeReceives(c, 1)
	e.event(e.b, verbs.EventSRQLimitReached, srq)
	e.must(srq.SetLimit(srq.MaxWR()), "SetLimit(MaxWR)")
}

// A QP with an SRQ that enters the error state raises LAST_WQE_REACHED once it consumes no more
// receives; the remaining receives serve the other QPs (IBTA 11.6.3).
func srqLastWQE(e *env) {
	srq, c := e.srqConn(8)
	other := e.onSRQ(srq)
	e.postRecv(srq, recv(10), recv(11))
	e.move(c.b, verbs.StateErr)
	e.event(e.b, verbs.EventLastWQEReached, c.b.QP)
	e.carry(other, send(1), 10)
	e.carry(other, send(2), 11)
	e.expectEmpty(c.b.cq, other.b.cq)
}

// A QP that fails because of a peer's request raises LAST_WQE_REACHED once, and the receives stay
// in the SRQ (IBTA 11.6.3.2, last WQE reached).
func srqLastWQERemote(e *env) {
	srq, c := e.srqConn(8)
	other := e.onSRQ(srq)
	local, target := e.buf(e.a, 64), e.buf(e.b, 64)
	e.postRecv(srq, recv(10), recv(11))
	e.post(c.a, write(1, target, 1, local.sge(0, 64)))
	e.fails(c.a, 1, e.orRetryExc(verbs.StatusRemAccessErr)...)
	e.inState(c.b, verbs.StateErr)
	e.event(e.b, verbs.EventLastWQEReached, c.b.QP)
	e.move(c.b, verbs.StateErr) // it already is
	e.carry(other, send(1), 10)
	e.carry(other, send(2), 11)
	e.expectEmpty(c.b.cq)
	if e.takeEvent(e.b, verbs.EventLastWQEReached, c.b.QP) {
		e.Error("a second event for the last WQE")
	}
}

// An oversized message fails one receive and one connection.
func srqFailure(e *env) {
	srq, c := e.srqConn(8)
	other, src, dst := e.onSRQ(srq), e.buf(e.a, 64), e.buf(e.b, 64)
	e.postRecv(srq, recv(11, dst.sge(0, 8)), recv(12, dst.sge(8, 8)))
	e.post(c.a, send(1, src.sge(0, 9)))
	e.fails(c.b, 11, verbs.StatusLocLenErr)
	e.fails(c.a, 1, e.orRetryExc(verbs.StatusRemInvReqErr)...)
	e.inState(c.b, verbs.StateErr)
	e.event(e.b, verbs.EventLastWQEReached, c.b.QP)
	e.carry(other, send(2, src.sge(0, 8)), 12)
}

// The receives of an SRQ outlive a closed QP and serve QPs created later.
func srqSurviveClose(e *env) {
	srq, c := e.srqConn(8)
	e.postRecv(srq, recv(10), recv(11), recv(12))
	e.carry(c, send(1), 10)
	e.must(c.b.Close(), "Close of a QP on an SRQ")
	later := e.onSRQ(srq)
	e.carry(later, send(2), 11)
	e.carry(later, send(3), 12)
	e.expectEmpty(c.b.cq)
}

// Closing a QP with unpolled receives frees their SRQ slots: MaxWR receives can always be posted.
func srqClosePlaces(e *env) {
	srq := e.newSRQ(e.b, verbs.SRQConfig{MaxWR: 4})
	for range 4 {
		c := e.onSRQ(srq)
		e.stock(srq, srq.MaxWR())
		for i := range uint64(srq.MaxWR()) {
			e.do(c.a, send(i))
		}
		// The peer has acknowledged all, so all receives were consumed. One
		// completion is polled, the others are discarded by Close.
		e.gets(c.b, 0, 0)
		e.must(c.b.Close(), "Close of a QP with completions")
		e.expectEmpty(c.b.cq)
	}
}

// Closing an SRQ with QPs returns ErrBusy; the SRQ remains usable, and closes after the last QP
// even if it contains receives (ibv_destroy_srq(3)).
func srqCloseBusy(e *env) {
	srq, first := e.srqConn(8)
	second := e.onSRQ(srq)
	e.postRecv(srq, recv(10), recv(11), recv(12))
	for i, c := range []*conn{first, second} {
		e.refused("Close of an SRQ in use", srq.Close(), verbs.ErrBusy)
		e.carry(c, sendImm(1, 3), uint64(10+i))
		e.must(c.b.Close(), "Close of a QP")
	}
	e.must(srq.Close(), "Close of an SRQ that has no QP any more")
	e.expectSRQClosed(srq)
	e.expectEmpty(first.b.cq, second.b.cq)
}
