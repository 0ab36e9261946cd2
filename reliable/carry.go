package reliable

import (
	"ibverbx/reliable/core"
	"ibverbx/reliable/wire"
	"ibverbx/verbs"
)

// step tells the connection what happened and carries out what it answers, and what follows
// from that.
func (l *link) step(ev *core.Event) {
	l.run(ev)
	for len(l.queue) > 0 && l.conn != nil {
		next := l.queue[0]
		l.queue = l.queue[:copy(l.queue, l.queue[1:])]
		l.run(&next)
	}
	l.touch()
	if l.sick {
		l.failMembers()
	}
}

// step tells the connection what happened to the flow of the QP.
func (q *qp) step(ev *core.Event) {
	ev.Flow = q.flow
	q.link.step(ev)
}

// failMembers takes the QPs to the error state whose flow has failed, or whose CQ overran.
func (l *link) failMembers() {
	l.sick = false
	for _, q := range l.members {
		if q != nil && (q.broken || (q.conn != nil && q.conn.Failed(int(q.flow)) && q.state == verbs.StateRTS)) {
			q.fail()
		}
	}
}

// touch notes that the QP may have something to post.
func (l *link) touch() {
	if !l.dirty {
		l.dirty = true
		l.ctx.dirty = append(l.ctx.dirty, l)
	}
}

func (l *link) run(ev *core.Event) {
	if l.conn == nil {
		return
	}
	actions := l.conn.Step(l.ctx.now, ev)
	for i := range actions {
		l.carry(ev, &actions[i])
	}
}

func (l *link) carry(ev *core.Event, a *core.Action) {
	switch a.Kind {
	case core.ActControl:
		l.tell(a)
	case core.ActReset:
		l.dropPath(int(a.Path))
	case core.ActRebuild:
		l.rebuild(a)
	case core.ActConnect:
		if p := &l.paths[a.Path]; p.qp != nil && p.epoch == a.Epoch {
			if l.join(int(a.Path), pathAddr{a.QPN, a.PSN}) != nil {
				l.queue = append(l.queue, core.Event{Kind: core.EvPathFailed, Path: a.Path, Epoch: a.Epoch})
			}
		}
	case core.ActDemand:
		l.demand(a)
	case core.ActSend, core.ActPlace, core.ActDeliver, core.ActComplete, core.ActSide, core.ActFault:
		if q := l.members[a.Flow]; q != nil { // it may have left
			q.carry(ev, a)
		}
	}
}

// carry carries out what is to be done for a message of the QP.
func (q *qp) carry(ev *core.Event, a *core.Action) {
	switch a.Kind {
	case core.ActSend:
		q.transmit(a)
	case core.ActPlace:
		q.place(&ev.Header)
	case core.ActDeliver:
		q.deliver(a)
	case core.ActComplete:
		if a.Status != 0 {
			q.link.sick = true
		}
		q.completeSend(a.Token, verbs.Status(a.Status))
	case core.ActSide:
		q.startSide(a.Token)
	default:
		q.fault(verbs.Status(a.Status))
	}
}

// rebuild makes the next QP of a path. If none can be had now it is tried again later.
func (l *link) rebuild(a *core.Action) {
	l.dropPath(int(a.Path))
	if l.makePath(int(a.Path), a.Epoch) != nil {
		l.queue = append(l.queue, core.Event{Kind: core.EvPathFailed, Path: a.Path, Epoch: a.Epoch})
		return
	}
	p := &l.paths[a.Path]
	l.queue = append(l.queue, core.Event{Kind: core.EvRebuilt, Path: a.Path, Epoch: a.Epoch, QPN: p.addr.qpn, PSN: p.addr.psn})
}

// transmit puts a chunk into the chain of its path.
func (q *qp) transmit(a *core.Action) {
	l := q.link
	p := &l.paths[a.Path]
	s := &q.sends[int(a.Token)&(len(q.sends)-1)]
	wr, slot := l.stage(int(a.Path), int32(q.flow))
	wr.Imm = a.Imm.Encode()
	if a.Imm.Kind == wire.KindData {
		wr.Opcode, wr.RemoteAddr, wr.RKey = verbs.OpRDMAWriteWithImm, s.wr.RemoteAddr+uint64(a.Offset), s.wr.RKey
	} else {
		h := &a.Header
		if h.Op == wire.OpWrite {
			h.Addr, h.RKey = s.wr.RemoteAddr+uint64(a.Offset), s.wr.RKey
		}
		h.Put(l.headers.slot(slot))
		wr.Opcode = verbs.OpSendWithImm
		wr.SGE[0] = l.headers.sge(slot, wire.HeaderLen)
		wr.NumSGE = 1
	}
	gather(wr, &s.wr, a.Offset, a.Len)
	p.posted++
}

// stage appends a send of a flow to the chain of a path, or a control packet if owner is -1, and
// returns it with its slot for a header.
func (l *link) stage(i int, owner int32) (*verbs.SendWR, int) {
	p := &l.paths[i]
	n := p.posted % pathSlots
	p.owner[n] = owner
	p.chain = append(p.chain, verbs.SendWR{WRID: tagPath.with(l.id, i, p.posted)})
	return &p.chain[len(p.chain)-1], i*pathSlots + int(n)
}

// gather appends the elements of n bytes at off of a request to wr.
func gather(wr, from *verbs.SendWR, off, n uint32) {
	for k := range int(from.NumSGE) {
		g := from.SGE[k]
		if off >= g.Length {
			off -= g.Length
			continue
		}
		if n == 0 {
			return
		}
		g.Addr += uint64(off)
		g.Length = min(g.Length-off, n)
		off = 0
		n -= g.Length
		wr.SGE[wr.NumSGE] = g
		wr.NumSGE++
	}
}

// tell sends a record: with others of its batch on a control QP, on its own on a path. If
// there is no room it is lost, which the protocol can bear.
func (l *link) tell(a *core.Action) {
	if a.Route < core.RoutePath {
		b := l.outbox[a.Route]
		if len(b) == 0 {
			b = wire.StartControl(b, l.peer.conn)
		}
		b, ok := wire.AddRecord(b, &a.Record)
		if !ok {
			l.mail(int(a.Route))
			b, _ = wire.AddRecord(wire.StartControl(l.outbox[a.Route][:0], l.peer.conn), &a.Record)
		}
		l.outbox[a.Route] = b
		return
	}
	i := int(a.Route - core.RoutePath)
	p := &l.paths[i]
	if p.qp == nil || p.orders == maxOrders {
		return
	}
	p.orders++
	wr, slot := l.stage(i, -1)
	b, _ := wire.AddRecord(wire.StartControl(l.headers.slot(slot)[:0], l.peer.conn), &a.Record)
	wr.Opcode, wr.Imm = verbs.OpSendWithImm, wire.Imm{Kind: wire.KindControl}.Encode()
	wr.SGE[0], wr.NumSGE = l.headers.sge(slot, len(b)), 1
	p.posted++
}

// mail sends the control packet that was put together for a control QP.
func (l *link) mail(i int) {
	b := l.outbox[i]
	c := &l.pd.control[i]
	l.outbox[i] = b[:0]
	if len(b) == 0 || len(c.free) == 0 || l.ah == nil {
		return
	}
	slot := c.free[len(c.free)-1]
	copy(c.out.slot(int(slot)), b)
	wr := &c.send[0]
	*wr = verbs.SendWR{
		WRID: tagControlSend.with(l.pd.id, i, slot), Opcode: verbs.OpSend, Flags: verbs.SendSignaled,
		AH: l.ah.Handle(), RemoteQPN: l.peer.control[i], RemoteQKey: verbs.DefaultQKey, NumSGE: 1,
	}
	wr.SGE[0] = c.out.sge(int(slot), len(b))
	if n, _ := c.qp.PostSend(c.send[:]); n == 1 {
		c.free = c.free[:len(c.free)-1]
	}
}

// place copies the bytes of a chunk, after check has found that it may.
func (q *qp) place(h *wire.Header) {
	switch h.Op {
	case wire.OpWrite:
		if b, ok := q.pd.remote(h.RKey, h.Addr, h.Len); ok {
			copy(b, q.link.landing)
		}
	case wire.OpEager:
		q.scatter(&q.recvs[int(h.Message)&(len(q.recvs)-1)], h.Offset)
	case wire.OpNotify:
	}
}

// scatter copies the bytes of a chunk into a receive, from off on.
func (q *qp) scatter(wr *verbs.RecvWR, off uint32) {
	rest := q.link.landing
	for k := range int(wr.NumSGE) {
		g := wr.SGE[k]
		if off >= g.Length {
			off -= g.Length
			continue
		}
		b, ok := q.pd.local(&g, true)
		if !ok {
			return
		}
		rest = rest[copy(b[off:], rest):]
		off = 0
	}
}

// check looks at a chunk before it is placed: whatever the peer says about where its bytes
// belong is compared with what the user has registered and posted here.
func (l *link) check(flow uint16, h *wire.Header) uint8 {
	if int(flow) >= len(l.members) || l.members[flow] == nil {
		return 0 // the core does not take it
	}
	return l.members[flow].check(h)
}

func (q *qp) check(h *wire.Header) uint8 {
	if h.Op == wire.OpWrite {
		if q.access&verbs.AccessRemoteWrite == 0 {
			return uint8(verbs.StatusRemInvReqErr)
		}
		if _, ok := q.pd.remote(h.RKey, h.Addr, h.Len); !ok && h.Len > 0 {
			return uint8(verbs.StatusRemAccessErr)
		}
		return 0
	}
	n := h.Message - q.recvHead
	if int32(n) < 0 {
		return uint8(verbs.StatusRemInvReqErr)
	}
	if n >= q.recvTail-q.recvHead {
		return core.StatusNoRecv
	}
	if h.Op == wire.OpNotify {
		return 0
	}
	wr := &q.recvs[int(h.Message)&(len(q.recvs)-1)]
	if uint64(h.Offset)+uint64(h.Len) > wr.Length() {
		q.faultLocal = verbs.StatusLocLenErr
		return uint8(verbs.StatusRemInvReqErr)
	}
	for k := range int(wr.NumSGE) {
		if g := &wr.SGE[k]; g.Length > 0 && h.Len > 0 {
			if _, ok := q.pd.local(g, true); !ok {
				q.faultLocal = verbs.StatusLocProtErr
				return uint8(verbs.StatusRemOpErr)
			}
		}
	}
	return 0
}

// deliver completes a receive.
func (q *qp) deliver(a *core.Action) {
	wr := &q.recvs[int(q.recvHead)&(len(q.recvs)-1)]
	q.recvHead++
	wc := verbs.WC{WRID: wr.WRID, QPN: q.num, Opcode: verbs.WCRecv, ByteLen: a.Len}
	if a.Header.Op == wire.OpNotify {
		wc.Opcode = verbs.WCRecvRDMAWithImm
	}
	if a.Header.Flags&wire.FlagImm != 0 {
		wc.Flags, wc.Imm = verbs.WCWithImm, a.Header.Imm
	}
	q.recvCQ.push(&wc, a.Header.Flags&wire.FlagSolicited != 0)
}

// fault ends the receiving half for something that the peer sent; the receive that it was
// for ends first.
func (q *qp) fault(status verbs.Status) {
	switch {
	case q.faultLocal != 0: // the completion says it
	case status == verbs.StatusRemAccessErr:
		q.ctx.raise(verbs.Event{Type: verbs.EventQPAccessErr, QP: q})
	default:
		q.ctx.raise(verbs.Event{Type: verbs.EventQPReqErr, QP: q})
	}
	if q.faultLocal != 0 && q.recvHead != q.recvTail {
		wr := &q.recvs[int(q.recvHead)&(len(q.recvs)-1)]
		q.recvHead++
		q.recvCQ.push(&verbs.WC{WRID: wr.WRID, QPN: q.num, Status: q.faultLocal}, true)
	}
	q.broken, q.link.sick = true, true
}

// completeSend ends a request.
func (q *qp) completeSend(token uint32, status verbs.Status) {
	s := &q.sends[int(token)&(len(q.sends)-1)]
	q.sendHead++
	if status == verbs.StatusSuccess && s.wr.Flags&verbs.SendSignaled == 0 && !q.cfg.SignalAll {
		return
	}
	wc := verbs.WC{WRID: s.wr.WRID, QPN: q.num, Status: status}
	if status == verbs.StatusSuccess {
		wc.Opcode = s.wr.Opcode.WC()
		if s.wr.Opcode >= verbs.OpRDMARead {
			wc.ByteLen = s.length
		}
	}
	q.sendCQ.push(&wc, false)
}

// startSide posts a READ or an atomic on the side QP, or ends a request that cannot be sent.
func (q *qp) startSide(token uint32) {
	s := &q.sends[int(token)&(len(q.sends)-1)]
	if s.bad != 0 {
		q.link.queue = append(q.link.queue, core.Event{Kind: core.EvSide, Flow: q.flow, Token: token, Status: uint8(s.bad)})
		return
	}
	q.sideWR[0] = s.wr
	q.sideWR[0].WRID = tagSide.with(q.id, 0, token)
	q.sideWR[0].Flags = verbs.SendSignaled | s.wr.Flags&verbs.SendFence
	if n, _ := q.side.PostSend(q.sideWR[:]); n != 1 {
		q.link.queue = append(q.link.queue, core.Event{Kind: core.EvSide, Flow: q.flow, Token: token, Status: uint8(verbs.StatusLocQPOpErr)})
	}
}

// failWith takes the QP to the error state; the oldest request ends with status.
func (q *qp) failWith(status verbs.Status) {
	switch {
	case q.state != verbs.StateRTS:
	case q.conn != nil:
		q.link.run(&core.Event{Kind: core.EvClose, Flow: q.flow, Status: uint8(status)})
	case q.sendHead != q.sendTail:
		q.completeSend(q.sendHead, status)
	}
	q.fail()
}

// fail takes the QP to the error state: everything outstanding is flushed.
func (q *qp) fail() {
	if q.state == verbs.StateErr || q.state == verbs.StateReset {
		return
	}
	q.state, q.broken = verbs.StateErr, false
	q.wait(0)
	if q.conn != nil {
		q.link.run(&core.Event{Kind: core.EvClose, Flow: q.flow, Status: uint8(verbs.StatusWRFlushErr)})
		if q.conn.Over() {
			q.link.dismiss()
		}
	}
	for q.sendHead != q.sendTail { // what still waited for the peer's card
		q.completeSend(q.sendHead, verbs.StatusWRFlushErr)
	}
	_ = q.side.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.AttrState) // it may be there already
	q.flushRecvs()
}

func (q *qp) flushRecvs() {
	for ; q.recvHead != q.recvTail; q.recvHead++ {
		wr := &q.recvs[int(q.recvHead)&(len(q.recvs)-1)]
		q.recvCQ.push(&verbs.WC{WRID: wr.WRID, QPN: q.num, Status: verbs.StatusWRFlushErr}, true)
	}
}
