package reliable

import (
	"ibverbx/internal/ntcopy"
	"ibverbx/reliable/core"
	"ibverbx/reliable/wire"
	"ibverbx/verbs"
)

func (q *qp) PostRecv(wrs []verbs.RecvWR) (n int, err error) {
	e := q.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case q.closed || e.closed:
		return 0, q.opError("post receive", verbs.ErrClosed)
	case q.shared.srq != nil:
		return 0, q.opError("post receive", verbs.Invalidf("the QP takes its receives from an SRQ"))
	case q.state == verbs.StateReset:
		return 0, q.opError("post receive", verbs.ErrState)
	}
	e.now = q.ctx.clock()
	for i := range wrs {
		if int(q.recvsHeld.Load()) >= q.cfg.MaxRecvWR {
			err = verbs.ErrQueueFull
			break
		}
		if int(wrs[i].NumSGE) > q.cfg.MaxRecvSGE {
			err = q.opError("post receive", verbs.Invalidf("%d elements, the QP was made for %d", wrs[i].NumSGE, q.cfg.MaxRecvSGE))
			break
		}
		*q.recvs.Extend() = wrs[i]
		q.recvsHeld.Add(1)
		n++
	}
	switch {
	case q.state == verbs.StateErr:
		q.flushRecvs()
	case n > 0 && q.ready:
		q.step(&core.Event{Kind: core.EvReceives, Count: n})
		e.flush()
		e.wakeForTimer(q.conn)
	}
	return n, err
}

// receiveChunk processes a chunk that arrived as ev.Header and payload in message.
func (c *connection) receiveChunk(ev *core.Event, message []byte) {
	c.payload = message[wire.HeaderLen:]
	ev.Kind, ev.Status = core.EvChunk, c.check(ev.Imm.Flow, &ev.Header)
	c.step(ev)
}

// check validates a chunk against the regions and receives of the flow's QP before it is placed. It returns the
// status of an EvChunk.
func (c *connection) check(flow uint16, h *wire.Header) uint8 {
	if int(flow) >= len(c.flows) || c.flows[flow] == nil || !c.flows[flow].connected {
		return 0 // the core refuses the chunk
	}
	q := c.flows[flow]
	switch h.Op {
	case wire.OpWrite:
		return q.checkWrite(h)
	case wire.OpFetch:
		return uint8(q.checkFetch(h))
	case wire.OpAnswer:
		return q.checkAnswer(h)
	case wire.OpEager, wire.OpNotify:
	}
	return q.checkReceive(h)
}

// checkWrite validates a retransmitted chunk of a WRITE.
func (q *qp) checkWrite(h *wire.Header) uint8 {
	if q.access&verbs.AccessRemoteWrite == 0 {
		return uint8(verbs.StatusRemInvReqErr)
	}
	if h.Len == 0 {
		return 0
	}
	r, _ := q.engine.regions.remote(h.RKey, h.Addr, h.Len, verbs.AccessRemoteWrite)
	if r == nil {
		return uint8(verbs.StatusRemAccessErr)
	}
	return q.engine.resources.placement(r.mem == nil)
}

// checkReceive validates a chunk of a SEND or a notification.
func (q *qp) checkReceive(h *wire.Header) uint8 {
	n := h.Message - q.recvs.Head()
	if int32(n) < 0 {
		return uint8(verbs.StatusRemInvReqErr)
	}
	if s := q.shared.srq; (s != nil && !s.consume(q, n)) || n >= uint32(q.recvs.Len()) {
		return core.StatusNoRecv
	}
	if h.Op == wire.OpNotify {
		return 0
	}
	wr := q.recvs.At(h.Message)
	if uint64(h.Offset)+uint64(h.Len) > wr.Length() {
		q.refused.recvError = verbs.StatusLocLenErr
		return uint8(verbs.StatusRemInvReqErr)
	}
	if h.Len == 0 {
		return 0
	}
	ok, dmaBuf := q.engine.regions.covers(wr.SGE[:wr.NumSGE], true)
	if !ok {
		q.refused.recvError = verbs.StatusLocProtErr
		return uint8(verbs.StatusRemOpErr)
	}
	return q.engine.resources.placement(dmaBuf)
}

// place copies the payload of a valid chunk to its destination. The CPU copies it at once, or the copier
// later. The payload of a response belongs to request token. A fetch is stored under token.
func (q *qp) place(ev *core.Event, token uint32) {
	h := &ev.Header
	switch {
	case h.Op == wire.OpFetch:
		q.storeFetch(token)
		return
	case h.Len == 0:
		return // any address is valid
	case h.Op == wire.OpAnswer:
		q.toHostOrder(token)
	}
	if ev.Status == core.StatusPlacing {
		q.engine.resources.copier.start(q, ev, token)
		return
	}
	var to verbs.RecvWR
	q.target(h, token, &to)
	rest := q.conn.payload
	for k := range int(to.NumSGE) {
		s := &to.SGE[k]
		r := q.engine.regions.find(s, true)
		if r == nil {
			return
		}
		rest = rest[ntcopy.Copy(r.mem.Bytes()[s.Addr-r.addr:][:s.Length], rest):]
	}
}

// target sets the elements of to to the destination of a chunk's payload.
func (q *qp) target(h *wire.Header, token uint32, to *verbs.RecvWR) {
	switch h.Op {
	case wire.OpWrite:
		if r, _ := q.engine.regions.remote(h.RKey, h.Addr, h.Len, verbs.AccessRemoteWrite); r != nil {
			to.SetSGE(verbs.SGE{Addr: h.Addr, Length: h.Len, LKey: r.lkey})
		}
	case wire.OpEager:
		wr := q.recvs.At(h.Message)
		to.NumSGE = uint8(verbs.CutSGE(to.SGE[:], wr.SGE[:wr.NumSGE], h.Offset, h.Len))
	case wire.OpAnswer:
		wr := &q.sends.At(token).wr
		to.NumSGE = uint8(verbs.CutSGE(to.SGE[:], wr.SGE[:wr.NumSGE], h.Offset, h.Len))
	case wire.OpFetch:
	case wire.OpNotify:
	}
}

// deliver completes the oldest receive.
func (q *qp) deliver(a *core.Action) {
	wc := verbs.WC{Opcode: verbs.WCRecv, ByteLen: a.Len}
	if a.Header.Op == wire.OpNotify {
		wc.Opcode = verbs.WCRecvRDMAWithImm
	}
	if a.Header.Flags&wire.FlagImm != 0 {
		wc.Flags, wc.Imm = verbs.WCWithImm, a.Header.Imm
	}
	q.completeRecv(wc, a.Header.Flags&wire.FlagSolicited != 0)
	if q.shared.srq != nil {
		q.shared.srq.advertise(q, false)
	}
}

// fault fails the QP after an unacceptable chunk of the peer. If the chunk's receive is the cause,
// it completes with an error first.
func (q *qp) fault(status verbs.Status) {
	switch {
	case status == verbs.StatusRemAccessErr: // refused.recvError, if any, belongs to a later chunk
		q.ctx.events.raise(verbs.Event{Type: verbs.EventQPAccessErr, QP: q})
	case q.refused.recvError != 0:
		if q.recvs.Len() > 0 {
			q.completeRecv(verbs.WC{Status: q.refused.recvError}, true)
		}
	default:
		q.ctx.events.raise(verbs.Event{Type: verbs.EventQPReqErr, QP: q})
	}
	q.broken, q.conn.failing = true, true
}

// countKey counts the wrong key of a chunk. The chunks of a request have one key, which counts once.
func (r *refusal) countKey(h *wire.Header, payload []byte, seal verbs.Seal) {
	key := h.RKey
	if h.Op == wire.OpFetch {
		f, _ := wire.DecodeFetch(payload) // was decoded before
		key = f.RKey
	}
	if r.keys > 0 && r.key == key {
		return
	}
	r.key = key
	r.keys++
	if s, ok := seal.(verbs.KeyCounter); ok {
		s.WrongKey()
	}
}

// flushRecvs completes all receives with a flush error.
func (q *qp) flushRecvs() {
	for q.recvs.Len() > 0 {
		q.completeRecv(verbs.WC{Status: verbs.StatusWRFlushErr}, true)
	}
}

// completeRecv completes the oldest receive. It fills in WRID and QPN of wc.
func (q *qp) completeRecv(wc verbs.WC, solicited bool) {
	wc.WRID, wc.QPN = q.recvs.Front().WRID, q.num
	q.recvs.Drop(1)
	occupied := &q.recvsHeld
	if q.shared.srq != nil {
		occupied = &q.shared.srq.occupied
	}
	q.recvCQ.push(&wc, occupied, 1, solicited)
}
