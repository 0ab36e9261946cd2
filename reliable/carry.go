package reliable

import (
	"ibverbx/reliable/core"
	"ibverbx/reliable/wire"
	"ibverbx/verbs"
)

// step tells the connection what happened and carries out what it answers, and what follows
// from that.
func (q *qp) step(ev *core.Event) {
	q.run(ev)
	for len(q.queue) > 0 && q.conn != nil {
		next := q.queue[0]
		q.queue = q.queue[:copy(q.queue, q.queue[1:])]
		q.run(&next)
	}
	q.touch()
	if q.broken || (q.conn != nil && q.conn.Failed(0) && q.state == verbs.StateRTS) {
		q.fail()
	}
}

// touch notes that the QP may have something to post.
func (q *qp) touch() {
	if !q.dirty {
		q.dirty = true
		q.ctx.dirty = append(q.ctx.dirty, q)
	}
}

func (q *qp) run(ev *core.Event) {
	if q.conn == nil {
		return
	}
	actions := q.conn.Step(q.ctx.now, ev)
	for i := range actions {
		q.carry(ev, &actions[i])
	}
}

func (q *qp) carry(ev *core.Event, a *core.Action) {
	switch a.Kind {
	case core.ActSend:
		q.transmit(a)
	case core.ActControl:
		q.tell(a)
	case core.ActPlace:
		q.place(&ev.Header)
	case core.ActDeliver:
		q.deliver(a)
	case core.ActComplete:
		q.completeSend(a.Token, verbs.Status(a.Status))
	case core.ActReset:
		q.dropPath(int(a.Path))
	case core.ActRebuild:
		q.rebuild(a)
	case core.ActConnect:
		if p := &q.paths[a.Path]; p.qp != nil && p.epoch == a.Epoch {
			if q.join(int(a.Path), pathAddr{a.QPN, a.PSN}) != nil {
				q.queue = append(q.queue, core.Event{Kind: core.EvPathFailed, Path: a.Path, Epoch: a.Epoch})
			}
		}
	case core.ActSide:
		q.startSide(a.Token)
	case core.ActFault:
		q.fault(verbs.Status(a.Status))
	case core.ActDemand:
		q.demand(a)
	}
}

// rebuild makes the next QP of a path. If none can be had the path stays down.
func (q *qp) rebuild(a *core.Action) {
	q.dropPath(int(a.Path))
	if q.makePath(int(a.Path), a.Epoch) != nil {
		return
	}
	ep, err := q.paths[a.Path].qp.Endpoint()
	if err != nil {
		return
	}
	q.queue = append(q.queue, core.Event{Kind: core.EvRebuilt, Path: a.Path, Epoch: a.Epoch, QPN: ep.QPN, PSN: ep.PSN})
}

// transmit puts a chunk into the chain of its path.
func (q *qp) transmit(a *core.Action) {
	p := &q.paths[a.Path]
	s := &q.sends[int(a.Token)&(len(q.sends)-1)]
	wr, slot := q.stage(int(a.Path), false)
	wr.Imm = a.Imm.Encode()
	if a.Imm.Kind == wire.KindData {
		wr.Opcode, wr.RemoteAddr, wr.RKey = verbs.OpRDMAWriteWithImm, s.wr.RemoteAddr+uint64(a.Offset), s.wr.RKey
	} else {
		h := &a.Header
		if h.Op == wire.OpWrite {
			h.Addr, h.RKey = s.wr.RemoteAddr+uint64(a.Offset), s.wr.RKey
		}
		h.Put(q.headers.slot(slot))
		wr.Opcode = verbs.OpSendWithImm
		wr.SGE[0] = q.headers.sge(slot, wire.HeaderLen)
		wr.NumSGE = 1
	}
	gather(wr, &s.wr, a.Offset, a.Len)
	p.posted++
}

// stage appends a send to the chain of a path, and returns it with its slot for a header.
func (q *qp) stage(i int, control bool) (*verbs.SendWR, int) {
	p := &q.paths[i]
	n := p.posted % pathSlots
	p.control[n] = control
	p.chain = append(p.chain, verbs.SendWR{WRID: tagPath.with(q.id, i, p.posted)})
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
func (q *qp) tell(a *core.Action) {
	if a.Route < core.RoutePath {
		b := q.outbox[a.Route]
		if len(b) == 0 {
			b = wire.StartControl(b, q.peer.conn)
		}
		b, ok := wire.AddRecord(b, &a.Record)
		if !ok {
			q.mail(int(a.Route))
			b, _ = wire.AddRecord(wire.StartControl(q.outbox[a.Route][:0], q.peer.conn), &a.Record)
		}
		q.outbox[a.Route] = b
		return
	}
	i := int(a.Route - core.RoutePath)
	p := &q.paths[i]
	if p.qp == nil || p.posted-p.done >= pathSlots-4 {
		return
	}
	wr, slot := q.stage(i, true)
	b, _ := wire.AddRecord(wire.StartControl(q.headers.slot(slot)[:0], q.peer.conn), &a.Record)
	wr.Opcode, wr.Imm = verbs.OpSendWithImm, wire.Imm{Kind: wire.KindControl}.Encode()
	wr.SGE[0], wr.NumSGE = q.headers.sge(slot, len(b)), 1
	p.posted++
}

// mail sends the control packet that was put together for a control QP.
func (q *qp) mail(i int) {
	b := q.outbox[i]
	c := &q.pd.control[i]
	q.outbox[i] = b[:0]
	if len(b) == 0 || len(c.free) == 0 || q.ah == nil {
		return
	}
	slot := c.free[len(c.free)-1]
	copy(c.out.slot(int(slot)), b)
	wr := &c.send[0]
	*wr = verbs.SendWR{
		WRID: tagControlSend.with(q.pd.id, i, slot), Opcode: verbs.OpSend, Flags: verbs.SendSignaled,
		AH: q.ah.Handle(), RemoteQPN: q.peer.control[i], RemoteQKey: verbs.DefaultQKey, NumSGE: 1,
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
			copy(b, q.landing)
		}
	case wire.OpEager:
		q.scatter(&q.recvs[int(h.Message)&(len(q.recvs)-1)], h.Offset)
	case wire.OpNotify:
	}
}

// scatter copies the bytes of a chunk into a receive, from off on.
func (q *qp) scatter(wr *verbs.RecvWR, off uint32) {
	rest := q.landing
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
	q.broken = true
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
		q.queue = append(q.queue, core.Event{Kind: core.EvSide, Token: token, Status: uint8(s.bad)})
		return
	}
	q.sideWR[0] = s.wr
	q.sideWR[0].WRID = tagSide.with(q.id, 0, token)
	q.sideWR[0].Flags = verbs.SendSignaled | s.wr.Flags&verbs.SendFence
	if n, _ := q.side.PostSend(q.sideWR[:]); n != 1 {
		q.queue = append(q.queue, core.Event{Kind: core.EvSide, Token: token, Status: uint8(verbs.StatusLocQPOpErr)})
	}
}

// failWith takes the QP to the error state; the oldest request ends with status.
func (q *qp) failWith(status verbs.Status) {
	switch {
	case q.state != verbs.StateRTS:
	case q.conn != nil:
		q.run(&core.Event{Kind: core.EvClose, Status: uint8(status)})
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
	q.dismiss()
	q.wait(0)
	if q.conn != nil {
		q.run(&core.Event{Kind: core.EvClose, Status: uint8(verbs.StatusWRFlushErr)})
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
