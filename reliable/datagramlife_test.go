package reliable

import (
	"encoding/binary"
	"testing"

	"ibverbx/reliable/core"
	"ibverbx/reliable/wire"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// newLoop returns a QP over two UD QPs that is connected to itself. hidden are capabilities that the NIC lacks.
func newLoop(t *testing.T, hidden verbs.Capabilities) *qp {
	t.Helper()
	q, _ := newQP(t, softnic.NewMemoryLink(nil), onlyUD, hidden, Config{Paths: 2})
	q.connectTo(t, q)
	return q
}

// TestResetKeepsReceives resets a UD QP whose datagrams wait in the CQ. Their buffers are free afterwards: the device takes
// the completions away, and a shared receive queue does not get the buffers back.
func TestResetKeepsReceives(t *testing.T) {
	q := newLoop(t, 0)
	h := &q.engine.resources
	if h.srq == nil {
		t.Fatal("the UD QPs have no shared receive queue")
	}
	q.engine.drive()
	before, from, to := len(h.refill), h.data[0].qp, &h.data[1]
	for range 5 {
		wr := verbs.SendWR{Opcode: verbs.OpSendWithImm, AH: q.conn.paths[0].ah.Handle(), RemoteQPN: to.qp.Num(), RemoteQKey: h.qkey}
		wr.SetSGE(q.conn.headers.sge(0, 4))
		_, err := from.PostSend([]verbs.SendWR{wr})
		fatal(t, err)
	}
	if to.revive(); to.failed || len(h.refill) != before+5 {
		t.Errorf("after a reset with 5 datagrams in the CQ %d receive buffers are free, want %d", len(h.refill), before+5)
	}
}

// TestResetOfAnotherQP: a datagram of a UD QP ends a connection, which resets another one. The buffer of the datagram is free
// afterwards.
func TestResetOfAnotherQP(t *testing.T) {
	q := newLoop(t, verbs.CapSRQOnUD)
	e := q.engine
	h := &e.resources
	if h.srq != nil {
		t.Fatal("the UD QPs have a shared receive queue")
	}
	_, err := q.PostSend([]verbs.SendWR{{Opcode: verbs.OpRDMAWrite}})
	fatal(t, err)
	first := 0
	if q.conn.paths[0].posted > 0 {
		first = 1
	}
	one, two := &h.data[first], &h.data[1-first]
	e.inbox.drain()
	e.inbox.discard(two.qp.Num()) // so that its sends seem to be under way
	head := wire.Header{Op: wire.OpWrite, Flags: wire.FlagLap, Conn: q.conn.id, RKey: 12345, Len: 8}
	b := h.arrival[0].slot(first)
	head.Put(b[verbs.GRHLen:])
	before, resets := len(one.refill), two.reviveAt
	h.arrived(uint32(first), &verbs.WC{
		QPN: one.qp.Num(), SrcQPN: one.qp.Num(), ByteLen: verbs.GRHLen + wire.HeaderLen + 8, Flags: verbs.WCWithImm,
		Imm: wire.Imm{Kind: wire.KindChunk}.Encode(),
	})
	if q.State() != verbs.StateErr || two.reviveAt == resets || one.reviveAt != 0 {
		t.Fatalf("the QP is in %v, and UD QPs were reset at %d and %d, want ERR and only the second", q.State(), one.reviveAt, two.reviveAt)
	}
	if len(one.refill) != before+1 {
		t.Errorf("%d receive buffers of the first UD QP are free, want %d", len(one.refill), before+1)
	}
}

// TestResetOnce: a request that is wrong ends its QP and stops its UD QP, which is reset for the sends of the ended
// connection. It is not out of service after that.
func TestResetOnce(t *testing.T) {
	q := newLoop(t, 0)
	_, err := q.PostSend([]verbs.SendWR{{Opcode: verbs.OpRDMAWrite}, {Opcode: verbs.OpRDMAWrite}})
	fatal(t, err)
	p := &q.conn.paths[0]
	if p.posted == 0 {
		p = &q.conn.paths[1]
	}
	q.engine.inbox.drain()
	q.engine.inbox.discard(p.data.qp.Num())
	p.sent(0, &verbs.WC{QPN: p.data.qp.Num(), Status: verbs.StatusLocProtErr})
	if d := p.data; q.State() != verbs.StateErr || d.resets != 1 || d.failed {
		t.Errorf("the QP is in %v after a wrong request, and its UD QP was reset %d times, failed %v: want ERR, 1 and false", q.State(), d.resets, d.failed)
	}
}

// resetting is a QP that calls a function right before its reset.
type resetting struct {
	verbs.QP
	before func()
}

func (q resetting) Modify(attr verbs.QPAttr, mask verbs.QPAttrMask) error {
	if attr.State == verbs.StateReset {
		q.before()
	}
	return q.QP.Modify(attr, mask)
}

// TestResetTakesNoReceives: datagrams that arrive between the last look at the CQ and the reset of a UD QP take no buffer of the
// shared receive queue. The reset would remove their completions.
func TestResetTakesNoReceives(t *testing.T) {
	q := newLoop(t, 0)
	h := &q.engine.resources
	q.engine.drive()
	nic := q.ctx.inner.Device().(*softnic.NIC)
	before, from, to := nic.Stats().NotReady, h.data[0].qp, &h.data[1]
	to.qp = resetting{to.qp, func() {
		wr := verbs.SendWR{Opcode: verbs.OpSendWithImm, AH: q.conn.paths[0].ah.Handle(), RemoteQPN: to.qp.Num(), RemoteQKey: h.qkey}
		wr.SetSGE(q.conn.headers.sge(0, 4))
		_, err := from.PostSend([]verbs.SendWR{wr})
		fatal(t, err)
	}}
	to.revive()
	if got := nic.Stats().NotReady - before; got != 1 || to.failed {
		t.Errorf("%d datagrams were dropped during the reset, want 1", got)
	}
}

// TestResetEnds: a UD QP that was reset stays in service. The error state before the reset raises an event, as a failure does.
func TestResetEnds(t *testing.T) {
	q := newLoop(t, 0)
	d := &q.engine.resources.data[0]
	d.revive()
	q.engine.step()
	if d.failed || d.resets != 1 {
		t.Errorf("after a reset the UD QP has %d lives and failed %v, want 1 and false", d.resets, d.failed)
	}
	fatal(t, d.qp.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.AttrState))
	q.engine.step()
	if !d.failed {
		t.Error("a UD QP in the error state is in service")
	}
}

// TestAddressOutlivesSends: a path that takes another route keeps the address handle of the former one until the device has sent
// what uses it.
func TestAddressOutlivesSends(t *testing.T) {
	q := newLoop(t, 0)
	_, err := q.PostSend([]verbs.SendWR{{Opcode: verbs.OpRDMAWrite}, {Opcode: verbs.OpRDMAWrite}})
	fatal(t, err)
	p := &q.conn.paths[0]
	if p.posted == 0 {
		p = &q.conn.paths[1]
	}
	p.done = 0 // as if the device were slow
	used, open := p.ah, q.engine.resources.ahs
	fatal(t, p.setRoute(1))
	if p.ah == used || open[used.attr] != used {
		t.Fatal("a path with requests under way keeps its address, or closes it, want another one and the handle open")
	}
	if err := p.setRoute(2); err == nil {
		t.Error("the path takes a third address meanwhile, want an error")
	}
	p.retire(p.posted)
	if p.oldAH != nil || open[used.attr] != nil {
		t.Error("the former address is open after its requests have completed")
	}
}

// TestDroppedSendsFreeEntries: a QP fails while the completions of its sends wait in the CQ. Their CQ entries are freed once.
func TestDroppedSendsFreeEntries(t *testing.T) {
	q := newLoop(t, 0)
	for range 4 {
		_, err := q.PostSend([]verbs.SendWR{{Opcode: verbs.OpRDMAWrite}})
		fatal(t, err)
	}
	fatal(t, q.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.AttrState))
	q.engine.drive()
	if n, _ := SendsOf(q); n != 0 {
		t.Errorf("%d sends hold CQ entries after all have completed, want none", n)
	}
}

// TestLateCard: a duplicate of a card arrives after the peer's next card. It is dropped, as on RC.
func TestLateCard(t *testing.T) {
	q := newLoop(t, 0)
	c := q.card()
	c.want = true
	b, s := c.encode(), q.handshake.cardQP
	for _, tt := range []struct{ number, answers uint32 }{{1, 1}, {2, 2}, {1, 2}, {3, 3}} {
		if s.acceptFragment(cardOwn, tt.number, 0, true, b); s.number != tt.answers {
			t.Errorf("after card %d, %d cards are answered, want %d", tt.number, s.number, tt.answers)
		}
	}
}

// TestCardQueueFull: a card datagram that finds the send queue full is dropped. It leaves the header of a datagram in the queue as it is.
func TestCardQueueFull(t *testing.T) {
	q := newLoop(t, 0)
	s := q.handshake.cardQP
	for i := range uint32(cardHeaders + 5) {
		s.post([4]byte{wire.Version, kindAck, cardOwn, 0}, i, 0)
	}
	for i := range uint32(cardHeaders) {
		if got := binary.BigEndian.Uint32(s.headers.slot(int(i))[4:]); got != i {
			t.Errorf("datagram %d in the send queue has the number %d", i, got)
		}
	}
	q.engine.drive()
	if s.post([4]byte{wire.Version, kindAck, cardOwn, 0}, 99, 0); binary.BigEndian.Uint32(s.headers.slot(0)[4:]) != 99 {
		t.Error("a datagram is dropped although the send queue is empty")
	}
}

// newDatagramFlows returns two QPs of one end that share a connection over two UD QPs.
func newDatagramFlows(t *testing.T) (a, b *qp) {
	t.Helper()
	link := softnic.NewMemoryLink(nil)
	var qps [2][2]*qp
	for i := range qps {
		q, p := newQP(t, link, onlyUD, 0, Config{Paths: 2, Flows: 4, ChunkBytes: 256, NoCredits: true})
		second, err := p.CreateQP(q.cfg)
		fatal(t, err)
		qps[i] = [2]*qp{q, second.(*qp)}
	}
	for k := range 2 {
		qps[0][k].connectTo(t, qps[1][k])
		qps[1][k].connectTo(t, qps[0][k])
	}
	for k := range 2 {
		qps[0][k].handshake.sendFirstCard()
		qps[1][k].handshake.sendFirstCard()
	}
	for range 100 {
		for i := range qps {
			qps[i][0].ctx.Step()
		}
	}
	a, b = qps[0][0], qps[0][1]
	if !a.ready || !b.ready || a.conn != b.conn {
		t.Fatalf("the QPs are ready: %v and %v, on one connection: %v, want all of it", a.ready, b.ready, a.conn == b.conn)
	}
	return a, b
}

// TestResetReportsSendsOnce: UD QPs are reset, then a flow closes, which makes room for a request of another one. That request does not
// complete before it is posted, because the core hears of the sends that the reset has ended only once.
func TestResetReportsSendsOnce(t *testing.T) {
	a, b := newDatagramFlows(t)
	mem, err := verbs.AllocMemory(1<<16, nil)
	fatal(t, err)
	mr, err := a.ctx.pds[0].RegisterMemory(mem, verbs.AccessAll)
	fatal(t, err)
	wr := verbs.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled}
	wr.SetSGE(verbs.SGE{Addr: mr.Addr(), Length: 1 << 16, LKey: mr.LKey()})
	_, err = a.PostSend([]verbs.SendWR{wr}) // fills the paths
	fatal(t, err)
	wr.SetSGE(verbs.SGE{Addr: mr.Addr(), Length: 8, LKey: mr.LKey()})
	_, err = b.PostSend([]verbs.SendWR{wr})
	fatal(t, err)
	c, e := b.conn, b.engine
	for i := range c.paths {
		if c.paths[i].posted < pathDepth {
			t.Fatalf("path %d has %d sends, want %d", i, c.paths[i].posted, pathDepth)
		}
		c.paths[i].data.revive()
	}
	fatal(t, a.Close())
	waiting := 0
	for i := range c.paths {
		waiting += len(c.paths[i].chain)
	}
	if waiting != 1 {
		t.Fatalf("%d sends wait for the doorbell after the first QP has closed, want the second one's", waiting)
	}
	c.step(&core.Event{Kind: core.EvRecord, Record: wire.Record{Type: wire.Ack, Flow: b.flow, Cum: 1, Window: 64}})
	if b.sends.Len() == 0 {
		t.Error("a request has completed before it is posted")
	}
	e.drive()
	fatal(t, mr.Close())
	fatal(t, mem.Free())
}

// TestFailedQPKeepsMemory: a UD QP fails while the device has a request. The request completes only once the QP is reset.
func TestFailedQPKeepsMemory(t *testing.T) {
	a, b := newDatagramFlows(t)
	_, err := a.PostSend([]verbs.SendWR{{Opcode: verbs.OpRDMAWrite}})
	fatal(t, err)
	c := a.conn
	p := &c.paths[0]
	if p.posted == 0 {
		p = &c.paths[1]
	}
	d := p.data
	d.failed, d.reviveAt = true, a.engine.now+1
	for range 8 {
		_, err = b.PostSend([]verbs.SendWR{{Opcode: verbs.OpRDMAWrite}})
		fatal(t, err)
	}
	c.step(&core.Event{Kind: core.EvRecord, Record: wire.Record{Type: wire.Ack, Flow: a.flow, Cum: 1, Window: 64}})
	if a.sends.Len() != 1 {
		t.Error("a request has completed while the failed QP may read its memory")
	}
	d.revive()
	c.step(&core.Event{Kind: core.EvFlush})
	if a.sends.Len() != 0 || d.failed {
		t.Errorf("%d requests are incomplete after the reset, failed %v, want none", a.sends.Len(), d.failed)
	}
}
