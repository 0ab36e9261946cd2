package verbstest

import "ibverbx/verbs"

var srqRuleTests = []test{
	{"OrderPerQP", srqSharedByQPs},
	{"InPostingOrderOverQPs", srqInPostingOrder},
	{"WriteWithImmLeavesBuffer", srqWriteWithImm},
	{"LongMessageWaits", srqEmptyIsNotReady},
	{"LimitRefusedChangesNothing", srqLimitRefused},
	{"TooManyElements", srqTooManyElements},
	{"BadConfigs", srqBadConfigs},
	{"BadQPConfigs", srqBadQPConfigs},
	{"LastWQEByRemoteError", srqLastWQERemote},
	{"ReceivesSurviveClose", srqSurviveClose},
	{"CloseGivesPlacesBack", srqClosePlaces},
	{"CloseBusy", srqCloseBusy},
}

// onSRQ returns an RC connection whose end B receives from srq.
func (e *env) onSRQ(srq verbs.SRQ) *conn {
	e.Helper()
	return e.conn(connConfig{srqB: srq})
}

// deliverImm sends a message with an immediate over c and returns its receive, the wr_id
// of which is not looked at.
func (e *env) deliverImm(c *conn, imm uint32, sges ...verbs.SGE) verbs.WC {
	e.Helper()
	e.do(c.a, sendImm(1, imm, sges...))
	wc := e.waitOne(c.b.cq)
	n := 0
	for _, s := range sges {
		n += int(s.Length)
	}
	e.receivedImm(wc, c.b, wc.WRID, verbs.WCRecv, n, imm)
	return wc
}

// QPs that share a queue each get their own messages, in the order in which they were
// sent; every receive is used once and wr_id says which (IBTA 10.2.9). Which QP takes
// which receive is open.
func srqSharedByQPs(e *env) {
	e.needSRQ()
	const qps, each, size = 4, 12, 5000
	cq := e.newCQ(e.b, 2*qps*each, nil)
	srq := e.newSRQ(e.b, verbs.SRQConfig{MaxWR: qps * each})
	src, dst := e.filled(e.a, 1, qps*each*size), e.buf(e.b, qps*each*size)
	for i := range qps * each {
		e.postRecv(srq, recv(uint64(i), dst.sge(i*size, size)))
	}
	ends, next := map[uint32]*end{}, map[uint32]uint32{}
	for i := range qps {
		c := e.conn(connConfig{srqB: srq, cqB: cq, signalAll: true})
		ends[c.b.Num()], next[c.b.Num()] = c.b, uint32(i*each)
		for k := range each {
			m := i*each + k
			e.post(c.a, silent(sendImm(uint64(m), uint32(m), src.sge(m*size, size-m))))
		}
	}
	used := map[uint64]bool{}
	for _, wc := range e.wait(cq, qps*each) {
		q := ends[wc.QPN]
		if q == nil || used[wc.WRID] || wc.WRID >= qps*each {
			e.Fatalf("receive with wr_id %d on QP %#x: no such QP, or the receive was used before", wc.WRID, wc.QPN)
		}
		used[wc.WRID] = true
		m := int(next[wc.QPN])
		next[wc.QPN]++
		e.receivedImm(wc, q, wc.WRID, verbs.WCRecv, size-m, uint32(m))
		e.same(dst.bytes()[int(wc.WRID)*size:][:size-m], src.bytes()[m*size:][:size-m])
	}
	e.none(cq)
}

// A message takes the receive that was posted first, whichever QP it comes for (IBTA
// 10.2.9: the queue is consumed from its head). One message is on its way at a time.
func srqInPostingOrder(e *env) {
	e.needSRQ()
	srq := e.newSRQ(e.b, verbs.SRQConfig{MaxWR: 8})
	first, second := e.onSRQ(srq), e.onSRQ(srq)
	e.postRecv(srq, recv(10), recv(11), recv(12))
	e.postRecv(srq, recv(13), recv(14), recv(15))
	for i, c := range []*conn{first, second, second, first, second, first} {
		if wc := e.deliverImm(c, uint32(i)); wc.WRID != uint64(10+i) {
			e.Errorf("message %d took the receive %d, want %d", i, wc.WRID, 10+i)
		}
	}
}

// WRITE_WITH_IMM takes a receive of the shared queue too; its bytes go elsewhere.
func srqWriteWithImm(e *env) {
	e.needSRQ()
	srq := e.newSRQ(e.b, verbs.SRQConfig{MaxWR: 8})
	c := e.onSRQ(srq)
	src, dst, unused := e.filled(e.a, 1, 3000), e.painted(e.b, 3100), e.painted(e.b, 64)
	e.postRecv(srq, recv(10, unused.sge(0, 64)), recv(11))
	e.carry(c, writeImm(1, 0xabcdef01, dst, 50, src.sge(0, 3000)), 10)
	e.holds(dst, 50, payload(1, 3000))
	e.untouched(unused)
	if wc := e.deliverImm(c, 2); wc.WRID != 11 {
		e.Errorf("the message after a WRITE_WITH_IMM took the receive %d, want 11", wc.WRID)
	}
}

// A sender waits while the shared queue is empty, and its message is delivered once
// there is a receive (IBTA 9.7.5.2.8).
func srqEmptyIsNotReady(e *env) {
	e.needSRQ()
	srq := e.newSRQ(e.b, verbs.SRQConfig{MaxWR: 8})
	c, other := e.onSRQ(srq), e.rc()
	src, dst := e.filled(e.a, 1, 9000), e.painted(e.b, 9100)
	e.post(c.a, send(1, src.sge(0, 9000)))
	e.fence(other)
	e.none(c.a.cq, c.b.cq)
	e.postRecv(srq, recv(10, dst.sge(10, 9000)), recv(11))
	e.gets(c.b, 10, 9000)
	e.done(c.a, 1, verbs.WCSend)
	e.holds(dst, 10, payload(1, 9000))
	if wc := e.deliverImm(c, 2); wc.WRID != 11 {
		e.Errorf("the next message took the receive %d, want 11", wc.WRID)
	}
}

// noLimitEvent fails the test if there is a limit event of srq.
func (e *env) noLimitEvent(srq verbs.SRQ, when string) {
	e.Helper()
	if e.takeEvent(e.b, verbs.EventSRQLimitReached, srq) {
		e.Errorf("a limit event %s, want none", when)
	}
}

// A limit that the queue cannot hold is refused and changes nothing (ibv_modify_srq(3)).
func srqLimitRefused(e *env) {
	e.needSRQ()
	srq := e.newSRQ(e.b, verbs.SRQConfig{MaxWR: 8})
	c := e.onSRQ(srq)
	e.postRecv(srq, recv(1), recv(2), recv(3))
	e.must(srq.SetLimit(2), "SetLimit(2)")
	e.refused("SetLimit(-1)", srq.SetLimit(-1), verbs.ErrInvalid, verbs.ErrLimit)
	e.refused("SetLimit(MaxWR+1)", srq.SetLimit(srq.MaxWR()+1), verbs.ErrInvalid, verbs.ErrLimit)
	e.deliverImm(c, 1)
	e.noLimitEvent(srq, "with 2 receives left and a limit of 2")
	e.deliverImm(c, 2)
	e.event(e.b, verbs.EventSRQLimitReached, srq)
}

// A receive with more elements than the queue was made for is refused, with all that
// come after it; those before it count. Zero means one element.
func srqTooManyElements(e *env) {
	e.needSRQ()
	for name, ask := range map[string]int{"Default": 0, "Most": min(e.b.attr.MaxSRQSGE, verbs.MaxSGE)} {
		e.sub(name, func(e *env) {
			k := max(ask, 1)
			srq := e.newSRQ(e.b, verbs.SRQConfig{MaxWR: 8, MaxSGE: ask})
			c, src, dst := e.onSRQ(srq), e.filled(e.a, 1, 64), e.buf(e.b, 128)
			sges, places := dst.ragged(0, 64, k)
			bad := recv(11)
			bad.NumSGE = uint8(k + 1)
			n, err := srq.PostRecv([]verbs.RecvWR{recv(10, sges...), bad, recv(12)})
			if n != 1 {
				e.Fatalf("PostRecv of a chain whose second request has %d elements = %d, %v, want 1", k+1, n, err)
			}
			e.refused("PostRecv with too many elements", err, verbs.ErrInvalid, verbs.ErrLimit)
			e.postRecv(srq, recv(13))
			if wc := e.deliverImm(c, 1, src.sge(0, 64)); wc.WRID != 10 {
				e.Errorf("the first message took the receive %d, want 10", wc.WRID)
			}
			var got []byte
			for _, p := range places {
				got = append(got, dst.bytes()[p[0]:p[0]+p[1]]...)
			}
			e.same(got, payload(1, 64))
			if wc := e.deliverImm(c, 2); wc.WRID != 13 {
				e.Errorf("the second message took the receive %d, want 13", wc.WRID)
			}
		})
	}
}

// mustNotExist closes what should not have been made, and checks why it was refused.
func (e *env) mustNotExist(what string, made interface{ Close() error }, err error) {
	e.Helper()
	e.refused(what, err, verbs.ErrInvalid, verbs.ErrLimit, verbs.ErrClosed)
	if err == nil {
		e.must(made.Close(), "Close")
	}
}

// Configurations that make no sense, or ask for more than the device has, are refused.
func srqBadConfigs(e *env) {
	e.needSRQ()
	for name, cfg := range map[string]verbs.SRQConfig{
		"MaxWR 0":            {},
		"MaxWR -1":           {MaxWR: -1},
		"MaxWR above limit":  {MaxWR: e.b.attr.MaxSRQWR + 1},
		"MaxSGE -1":          {MaxWR: 4, MaxSGE: -1},
		"MaxSGE above limit": {MaxWR: 4, MaxSGE: max(e.b.attr.MaxSRQSGE, verbs.MaxSGE) + 1},
		"Limit -1":           {MaxWR: 4, Limit: -1},
	} {
		srq, err := e.b.pd.CreateSRQ(cfg)
		e.mustNotExist("CreateSRQ with "+name, srq, err)
	}
}

// A QP takes an SRQ of its own PD that is open, and has no receive queue beside it.
func srqBadQPConfigs(e *env) {
	e.needSRQ()
	own := e.newSRQ(e.b, verbs.SRQConfig{MaxWR: 4})
	closed := e.newSRQ(e.b, verbs.SRQConfig{MaxWR: 4})
	e.must(closed.Close(), "Close of an SRQ that nobody uses")
	foreign, err := e.newPD(e.b).CreateSRQ(verbs.SRQConfig{MaxWR: 4})
	e.must(err, "CreateSRQ on another PD")
	e.closeLater("SRQ", foreign)
	cq := e.newCQ(e.b, 16, nil)
	good := verbs.QPConfig{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, MaxSendWR: 4, Port: e.b.port, GID: e.b.gid, SRQ: own}
	for name, change := range map[string]func(cfg *verbs.QPConfig){
		"a receive queue beside the SRQ": func(cfg *verbs.QPConfig) { cfg.MaxRecvWR = 4 },
		"an SRQ of another PD":           func(cfg *verbs.QPConfig) { cfg.SRQ = foreign },
		"an SRQ of another context":      func(cfg *verbs.QPConfig) { cfg.SRQ = e.newSRQ(e.a, verbs.SRQConfig{MaxWR: 4}) },
		"a closed SRQ":                   func(cfg *verbs.QPConfig) { cfg.SRQ = closed },
	} {
		bad := good
		change(&bad)
		qp, err := e.b.pd.CreateQP(bad)
		e.mustNotExist("CreateQP with "+name, qp, err)
	}
	e.newQP(e.b, good)
	// The refused ones do not count as users.
	e.must(foreign.Close(), "Close of an SRQ whose QPs were refused")
}

// A QP that fails for what its peer asked tells that it takes no more receives, once,
// and the receives stay (IBTA 11.6.3.2, last WQE reached).
func srqLastWQERemote(e *env) {
	e.needSRQ()
	srq := e.newSRQ(e.b, verbs.SRQConfig{MaxWR: 8})
	c, other := e.onSRQ(srq), e.onSRQ(srq)
	local, target := e.buf(e.a, 64), e.buf(e.b, 64)
	e.postRecv(srq, recv(10), recv(11))
	e.post(c.a, write(1, target, 1, local.sge(0, 64)))
	e.fails(c.a, 1, e.answer(verbs.StatusRemAccessErr)...)
	e.inState(c.b, verbs.StateErr)
	e.event(e.b, verbs.EventLastWQEReached, c.b.QP)
	e.toErr(c.b) // it is there already
	for i := range 2 {
		if wc := e.deliverImm(other, uint32(i)); wc.WRID != uint64(10+i) {
			e.Errorf("message %d took the receive %d, want %d", i, wc.WRID, 10+i)
		}
	}
	e.none(c.b.cq)
	if e.takeEvent(e.b, verbs.EventLastWQEReached, c.b.QP) {
		e.Error("a second event for the last WQE")
	}
}

// The receives of an SRQ outlive a QP that is closed, and serve QPs made later.
func srqSurviveClose(e *env) {
	e.needSRQ()
	srq := e.newSRQ(e.b, verbs.SRQConfig{MaxWR: 8})
	c := e.onSRQ(srq)
	e.postRecv(srq, recv(10), recv(11), recv(12))
	e.deliverImm(c, 0)
	e.must(c.b.Close(), "Close of a QP on an SRQ")
	later := e.onSRQ(srq)
	for i := 1; i < 3; i++ {
		if wc := e.deliverImm(later, uint32(i)); wc.WRID != uint64(10+i) {
			e.Errorf("message %d took the receive %d, want %d", i, wc.WRID, 10+i)
		}
	}
	e.none(c.b.cq)
}

// Receives whose completions go away with their QP do not take places in the SRQ for
// ever: as often as that happens, there is room for MaxWR receives.
func srqClosePlaces(e *env) {
	e.needSRQ()
	srq := e.newSRQ(e.b, verbs.SRQConfig{MaxWR: 4})
	for range 4 {
		c := e.onSRQ(srq)
		for i := range srq.MaxWR() {
			e.postRecv(srq, recv(uint64(i)))
		}
		for i := range uint64(srq.MaxWR()) {
			e.do(c.a, send(i))
		}
		// The peer has acknowledged all, so all the receives were taken. One
		// completion is polled, the others are discarded by Close.
		e.gets(c.b, 0, 0)
		e.must(c.b.Close(), "Close of a QP with completions")
		e.none(c.b.cq)
	}
}

// An SRQ cannot be closed under its QPs, goes on after the attempt, and can be closed
// when the last one is gone (ibv_destroy_srq(3)).
func srqCloseBusy(e *env) {
	e.needSRQ()
	srq := e.newSRQ(e.b, verbs.SRQConfig{MaxWR: 8})
	first, second := e.onSRQ(srq), e.onSRQ(srq)
	for _, c := range []*conn{first, second} {
		e.refused("Close of an SRQ in use", srq.Close(), verbs.ErrBusy)
		e.postRecv(srq, recv(10))
		e.deliverImm(c, 1)
		e.must(c.b.Close(), "Close of a QP")
	}
	e.must(srq.Close(), "Close of an SRQ that nobody uses any more")
	e.must(srq.Close(), "second Close")
	n, err := srq.PostRecv([]verbs.RecvWR{recv(1)})
	if n != 0 {
		e.Errorf("PostRecv to a closed SRQ = %d, want 0", n)
	}
	e.refused("PostRecv to a closed SRQ", err, verbs.ErrClosed)
	e.refused("SetLimit of a closed SRQ", srq.SetLimit(1), verbs.ErrClosed)
}
