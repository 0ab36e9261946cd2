package reliable

import (
	"ibverbx/reliable/core"
	"ibverbx/reliable/wire"
	"ibverbx/verbs"
)

// sendSlot is a posted request.
type sendSlot struct {
	wr     verbs.SendWR // the request; its elements point into qp.inline if it is inline
	length uint32       // the sum of its elements in bytes
}

func (q *qp) PostSend(wrs []verbs.SendWR) (n int, err error) {
	e := q.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case q.closed || e.closed:
		return 0, q.opError("post send", verbs.ErrClosed)
	case q.state != verbs.StateRTS && q.state != verbs.StateErr:
		return 0, q.opError("post send", verbs.ErrState)
	}
	e.now = q.ctx.clock()
	for i := range wrs {
		if int(q.sendsHeld.Load()) >= q.cfg.MaxSendWR {
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
	if q.ready {
		q.conn.endPosts()
	}
	e.flush()
	if q.ready {
		e.wakeForTimer(q.conn)
	}
	return n, err
}

// checkSend validates a request.
func (q *qp) checkSend(wr *verbs.SendWR) error {
	switch n := wr.Length(); {
	case wr.Opcode > verbs.OpAtomicFetchAndAdd:
		return verbs.Invalidf("opcode %d is not known", wr.Opcode)
	case !wr.Flags.Valid():
		return verbs.Invalidf("flags %#x are not known", uint8(wr.Flags))
	case int(wr.NumSGE) > q.cfg.MaxSendSGE:
		return verbs.Invalidf("%d elements, the QP was made for %d", wr.NumSGE, q.cfg.MaxSendSGE)
	case n > q.ctx.maxMsg():
		return verbs.Invalidf("%d bytes, at most %d", n, q.ctx.maxMsg())
	case wr.Opcode >= verbs.OpAtomicCmpAndSwp && n != 8:
		return verbs.Invalidf("an atomic with %d bytes, want 8", n)
	case wr.Flags&verbs.SendInline != 0 && wr.Opcode >= verbs.OpRDMARead:
		return verbs.Invalidf("%v cannot be inline", wr.Opcode)
	case wr.Flags&verbs.SendInline != 0 && n > uint64(q.cfg.MaxInline):
		return verbs.Invalidf("%d inline bytes, the QP was made for %d", n, q.cfg.MaxInline)
	case wr.Flags&verbs.SendInline != 0 && q.engine.regions.deviceOf(wr.SGE[:wr.NumSGE]) != "":
		return verbs.Invalidf("INLINE bytes are copied by the CPU, which cannot access memory of %s; send them without INLINE",
			q.engine.regions.deviceOf(wr.SGE[:wr.NumSGE]))
	}
	return nil
}

// enqueue adds a request to sends and submits it.
func (q *qp) enqueue(wr *verbs.SendWR) {
	token := q.sends.Tail()
	s := q.sends.Extend()
	q.sendsHeld.Add(1)
	s.wr, s.length = *wr, uint32(wr.Length())
	if q.state == verbs.StateErr {
		q.completeSend(token, verbs.StatusWRFlushErr)
		return
	}
	if wr.Flags&verbs.SendInline != 0 {
		q.copyInline(s, int(token)&(q.sends.Cap()-1))
	}
	ready := q.ready
	q.handshake.sendFirstCard()
	if ready {
		q.submit(token) // otherwise startSending does it
	}
}

// submit passes a request to the core.
func (q *qp) submit(token uint32) {
	s := q.sends.At(token)
	wr := &s.wr
	m := core.Message{Token: token, Length: s.length, Imm: wr.Imm, Fence: wr.Flags&verbs.SendFence != 0}
	if most := q.ctx.carrier.sges - 1; int(wr.NumSGE) > most { // a chunk with a header has one element less
		breaks, at := 0, uint32(0)
		for k := range int(wr.NumSGE) {
			if k > 0 && k%most == 0 {
				m.Breaks[breaks] = at
				breaks++
			}
			at += s.wr.SGE[k].Length
		}
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
		m.Kind, m.Flags, m.Length, m.Breaks, m.Answer = core.MsgFetch, 0, wire.FetchLen, [core.MaxBreaks]uint32{}, s.length
	}
	if bad := q.localError(wr); bad != verbs.StatusSuccess {
		// It fails after the requests before it, as on a NIC.
		m.Kind, m.Length, m.Status = core.MsgInvalid, 0, uint8(bad)
	}
	q.step(&core.Event{Kind: core.EvPost, Message: m})
}

// localError returns the status of a request that fails locally.
func (q *qp) localError(wr *verbs.SendWR) verbs.Status {
	fetch := wr.Opcode >= verbs.OpRDMARead
	if fetch && q.maxFetches == 0 {
		return verbs.StatusLocQPOpErr
	}
	if wr.Flags&verbs.SendInline != 0 {
		return verbs.StatusSuccess
	}
	if ok, _ := q.engine.regions.covers(wr.SGE[:wr.NumSGE], fetch); !ok {
		return verbs.StatusLocProtErr
	}
	return verbs.StatusSuccess
}

// copyInline copies the bytes of an inline request to slot i.
func (q *qp) copyInline(s *sendSlot, i int) {
	b := q.inline.slot(i)
	n := 0
	for k := range int(s.wr.NumSGE) {
		n += copy(b[n:], inlineBytes(s.wr.SGE[k].Addr, s.wr.SGE[k].Length))
	}
	s.wr.NumSGE = 0
	if n > 0 {
		s.wr.NumSGE = 1
		s.wr.SGE[0] = q.inline.sge(i, n)
	}
}

// transmit stages a chunk on its path.
func (q *qp) transmit(a *core.Action) {
	owner := int16(q.flow)
	if a.Header.Op == wire.OpAnswer {
		owner = answerChunk
	}
	wr, slot := q.conn.paths[a.Path].stage(owner)
	wr.Imm = a.Imm.Encode()
	if a.Imm.Kind == wire.KindData {
		s := q.sends.At(a.Token)
		wr.Opcode, wr.RemoteAddr, wr.RKey = verbs.OpRDMAWriteWithImm, s.wr.RemoteAddr+uint64(a.Offset), s.wr.RKey
		wr.NumSGE += uint8(verbs.CutSGE(wr.SGE[wr.NumSGE:], s.wr.SGE[:s.wr.NumSGE], a.Offset, a.Len))
		return
	}
	h, b, n := &a.Header, q.conn.headers.slot(slot), wire.HeaderLen
	if h.Flags&wire.FlagLap != 0 {
		h.Conn = q.conn.peer.conn
	}
	wr.Opcode, wr.NumSGE = verbs.OpSendWithImm, 1
	switch h.Op {
	case wire.OpAnswer:
		s := &q.answers[a.Token]
		if h.Xmit > 0 && !q.readable(s, a.Offset, a.Len) {
			h.Len = 0
		}
		n += s.stage(wr, b, a.Offset, h.Len)
	case wire.OpFetch:
		n += putFetch(b[n:], &q.sends.At(a.Token).wr)
	case wire.OpWrite, wire.OpEager, wire.OpNotify:
		s := q.sends.At(a.Token)
		if h.Op == wire.OpWrite {
			h.Addr, h.RKey = s.wr.RemoteAddr+uint64(a.Offset), s.wr.RKey
		}
		wr.NumSGE += uint8(verbs.CutSGE(wr.SGE[wr.NumSGE:], s.wr.SGE[:s.wr.NumSGE], a.Offset, a.Len))
	}
	h.Put(b)
	wr.SGE[0] = q.conn.headers.sge(slot, n)
}

// completeSend completes the oldest request, whose token is token.
func (q *qp) completeSend(token uint32, status verbs.Status) {
	s := q.sends.At(token)
	q.sends.Drop(1)
	q.unreported++
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
	q.sendCQ.push(&wc, &q.sendsHeld, q.unreported, false)
	q.unreported = 0
}
