package reliable

import (
	"ibverbx/reliable/core"
	"ibverbx/reliable/wire"
	"ibverbx/verbs"
)

// PostSend implements verbs.QP.
func (q *qp) PostSend(wrs []verbs.SendWR) (n int, err error) {
	d := q.ctx
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := q.maySend(); err != nil {
		return 0, q.opError("post send", err)
	}
	d.now = d.clock()
	for i := range wrs {
		if q.sendTail-q.sendHead >= uint32(q.cfg.MaxSendWR) {
			err = verbs.ErrQueueFull
			break
		}
		if e := q.checkSend(&wrs[i]); e != nil {
			err = q.opError("post send", e)
			break
		}
		q.enqueue(&wrs[i])
		n++
	}
	d.flush()
	d.rekick(q)
	return n, err
}

func (q *qp) maySend() error {
	switch {
	case q.closed || q.ctx.closed:
		return verbs.ErrClosed
	case q.state != verbs.StateRTS && q.state != verbs.StateErr:
		return verbs.ErrState
	}
	return nil
}

// checkSend says what is wrong with a request.
func (q *qp) checkSend(wr *verbs.SendWR) error {
	switch n := wr.Length(); {
	case wr.Opcode > verbs.OpAtomicFetchAndAdd:
		return verbs.Invalidf("opcode %d is not known", wr.Opcode)
	case !wr.Flags.Valid():
		return verbs.Invalidf("flags %#x are not known", uint8(wr.Flags))
	case int(wr.NumSGE) > q.sendSGE:
		return verbs.Invalidf("%d elements, the QP was made for %d", wr.NumSGE, q.sendSGE)
	case n > q.ctx.maxMsg():
		return verbs.Invalidf("%d bytes, at most %d", n, q.ctx.maxMsg())
	case wr.Opcode >= verbs.OpAtomicCmpAndSwp && n != 8:
		return verbs.Invalidf("an atomic with %d bytes, want 8", n)
	case wr.Flags&verbs.SendInline != 0 && wr.Opcode >= verbs.OpRDMARead:
		return verbs.Invalidf("%v cannot be inline", wr.Opcode)
	case wr.Flags&verbs.SendInline != 0 && n > uint64(q.cfg.MaxInline):
		return verbs.Invalidf("%d inline bytes, the QP was made for %d", n, q.cfg.MaxInline)
	}
	return nil
}

// enqueue takes a request.
func (q *qp) enqueue(wr *verbs.SendWR) {
	token := q.sendTail
	q.sendTail++
	i := int(token) & (len(q.sends) - 1)
	s := &q.sends[i]
	s.wr, s.length, s.bad = *wr, uint32(wr.Length()), 0
	if q.state == verbs.StateErr {
		q.completeSend(token, verbs.StatusWRFlushErr)
		return
	}
	if wr.Flags&verbs.SendInline != 0 {
		q.copyInline(s, i)
	}
	q.introduce()
	if q.conn != nil {
		q.launch(token) // otherwise when the peer has answered
	}
}

// launch hands a request to the connection.
func (q *qp) launch(token uint32) {
	s := &q.sends[int(token)&(len(q.sends)-1)]
	wr := &s.wr
	m := core.Message{Token: token, Length: s.length, Imm: wr.Imm, Fence: wr.Flags&verbs.SendFence != 0}
	if wr.NumSGE == verbs.MaxSGE {
		// A chunk with a header has one element less.
		m.Break = s.length - s.wr.SGE[verbs.MaxSGE-1].Length
	}
	if wr.Flags&verbs.SendSolicited != 0 {
		m.Flags |= wire.FlagSolicited
	}
	switch wr.Opcode {
	case verbs.OpRDMAWrite:
		m.Kind = core.MsgWrite
	case verbs.OpRDMAWriteWithImm:
		m.Kind = core.MsgWriteImm
		m.Flags |= wire.FlagImm
	case verbs.OpSend:
		m.Kind = core.MsgSend
	case verbs.OpSendWithImm:
		m.Kind = core.MsgSend
		m.Flags |= wire.FlagImm
	default:
		m.Kind, m.Length = core.MsgSide, 0
	}
	if m.Kind != core.MsgSide {
		if s.bad = q.checkKeys(s); s.bad != 0 {
			// It fails when its turn comes, as a NIC would find out.
			m.Kind, m.Length = core.MsgSide, 0
		}
	}
	ev := &q.link.ev
	*ev = core.Event{Kind: core.EvPost, Message: m}
	q.step(ev)
}

// copyInline keeps the bytes of an inline request.
func (q *qp) copyInline(s *sendSlot, i int) {
	b := q.inline.slot(i)
	n := 0
	for k := range int(s.wr.NumSGE) {
		n += copy(b[n:], peek(s.wr.SGE[k].Addr, s.wr.SGE[k].Length))
	}
	s.wr.NumSGE = 0
	if n > 0 {
		s.wr.NumSGE = 1
		s.wr.SGE[0] = q.inline.sge(i, n)
	}
}

// checkKeys looks at the local keys of a request.
func (q *qp) checkKeys(s *sendSlot) verbs.Status {
	if s.wr.Flags&verbs.SendInline != 0 {
		return 0
	}
	for k := range int(s.wr.NumSGE) {
		if g := &s.wr.SGE[k]; g.Length > 0 {
			if _, ok := q.pd.local(g, false); !ok {
				return verbs.StatusLocProtErr
			}
		}
	}
	return 0
}

// PostRecv implements verbs.QP.
func (q *qp) PostRecv(wrs []verbs.RecvWR) (n int, err error) {
	d := q.ctx
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case q.closed || d.closed:
		return 0, q.opError("post receive", verbs.ErrClosed)
	case q.state == verbs.StateReset:
		return 0, q.opError("post receive", verbs.ErrState)
	}
	d.now = d.clock()
	for i := range wrs {
		if q.recvTail-q.recvHead >= uint32(q.cfg.MaxRecvWR) {
			err = verbs.ErrQueueFull
			break
		}
		if int(wrs[i].NumSGE) > q.recvSGE {
			err = q.opError("post receive", verbs.Invalidf("%d elements, the QP was made for %d", wrs[i].NumSGE, q.recvSGE))
			break
		}
		q.recvs[int(q.recvTail)&(len(q.recvs)-1)] = wrs[i]
		q.recvTail++
		n++
	}
	switch {
	case q.state == verbs.StateErr:
		q.flushRecvs()
	case n > 0 && q.conn != nil:
		ev := &q.link.ev
		*ev = core.Event{Kind: core.EvReceives, Count: n}
		q.step(ev)
		d.flush()
		d.rekick(q)
	}
	return n, err
}
