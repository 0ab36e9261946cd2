package core

import "ibverbx/reliable/wire"

const (
	// ackEvery is how often a sender asks for an acknowledgement on its way.
	ackEvery = 8
	// maxXmits is how often a chunk is sent at the most: the count has eight bits.
	maxXmits = 255
	// maxSamePath is how often a chunk is repeated on a path that lives but loses it
	// again and again.
	maxSamePath = 8
)

// post takes a message. After a failure it ends at once.
func (c *Conn) post(f *flow, m *Message) {
	if f.failed {
		c.complete(f, m.Token, statusFlush)
		return
	}
	if f.posted-f.reported >= uint64(f.depth) {
		panic("core: a message was posted although Room is 0")
	}
	slot := f.message(f.posted)
	*slot = message{Message: *m}
	if m.Kind == MsgWriteImm || m.Kind == MsgSend {
		slot.number = f.messageNo
		f.messageNo++
	}
	f.posted++
	c.demand += uint64(m.Length)
}

func (c *Conn) complete(f *flow, token uint32, status uint8) {
	a := c.act(ActComplete)
	a.Flow, a.Token, a.Status = f.number, token, status
}

// dispatch sends what may be sent: what was lost first, then of every flow that has something
// to send a chunk in turn.
func (c *Conn) dispatch() {
	c.blocked = false
	if c.lost > 0 {
		c.resendAll()
	}
	for c.ready.count > 0 {
		f := c.flows[c.ready.slots[c.ready.head]]
		if f.failed || f.cut == f.posted {
			c.ready.pop()
			f.queued = false
			continue
		}
		switch c.sendNew(f) {
		case sentOne:
			c.ready.pop()
			c.ready.push(f.number)
		case flowWaits:
			c.ready.pop()
			f.queued = false
			c.mark(f) // it may have to ask for what it waits for
		case connWaits:
			return
		}
	}
}

// resendAll sends lost chunks of all flows again.
func (c *Conn) resendAll() {
	kept := 0
	for i := 0; i < len(c.losers); i++ {
		f := c.flows[c.losers[i]]
		if f.lostCount > 0 && !f.held {
			c.resendLost(f)
		}
		if f.losing = f.lostCount > 0; f.losing {
			c.losers[kept] = f.number
			kept++
		}
	}
	c.losers = c.losers[:kept]
}

// resendLost sends lost chunks of a flow again, oldest first, as far as their paths have room.
func (c *Conn) resendLost(f *flow) {
	left := f.lostCount
	for csn := f.una; csn < f.nxt && left > 0; csn++ {
		ch := f.chunk(csn)
		if ch.state != chunkLost {
			continue
		}
		left--
		if !c.mayFly(int(ch.len)) {
			return
		}
		if ch.xmits == maxXmits {
			c.fail(f, statusRetryExc)
			return
		}
		if i := c.pathAgain(ch); i >= 0 {
			c.unlose(f, csn)
			c.transmit(f, csn, i)
		}
	}
}

// pathAgain returns the path on which a lost chunk goes next, or -1. As long as the path
// that it was sent on carries anything it is that one; see the fence in the package comment.
func (c *Conn) pathAgain(ch *chunk) int {
	i, epoch := int(ch.path), ch.epoch
	if p := &c.paths[i]; p.epoch == epoch && p.carries() {
		if ch.xmits >= maxSamePath && !ch.moved && p.state == PathUp && len(c.up) > 1 {
			c.down(i)
		} else if c.room(p) {
			return i
		} else {
			return -1
		}
	}
	return c.choose(ch.len)
}

// mayFly reports whether the windows leave room for a transmission of n bytes.
func (c *Conn) mayFly(n int) bool {
	if c.flying == 0 {
		return true
	}
	return c.flying < c.window && c.flyingBytes+n <= c.cfg.Congestion.Window()
}

// turn is how the turn of a flow ended.
type turn uint8

const (
	sentOne   turn = iota
	flowWaits      // for something that only it waits for
	connWaits      // for something that others wait for, too
)

// sendNew cuts one chunk from the front message of a flow and sends it.
func (c *Conn) sendNew(f *flow) turn {
	waited := f.noRecv
	f.noRecv = false
	m := f.message(f.cut)
	if m.Fence && !m.begun && f.reported != f.cut {
		return flowWaits
	}
	if m.Kind == MsgSide {
		return c.startSide(f, m)
	}
	if f.nxt-f.una >= uint64(len(f.chunks)) {
		return flowWaits
	}
	var ch chunk
	c.nextPiece(m, &ch)
	if ch.op != 0 && f.sides > 0 {
		return flowWaits // the receiver is not told if something before fails
	}
	if ch.op != 0 && int32(m.number-f.recvLimit) >= 0 {
		f.noRecv = true
		if !waited {
			f.noRecvAt = c.now
		}
		return flowWaits
	}
	if !c.mayFly(int(ch.len)) || !c.hasCredit(ch.len) {
		return connWaits
	}
	i := c.choose(ch.len)
	if i < 0 {
		return connWaits
	}
	ch.msg = f.cut
	ch.origPath, ch.origEpoch = uint16(i), c.paths[i].epoch
	m.begun = true
	m.off += ch.len
	c.sent += uint64(ch.len)
	if ch.flags&wire.FlagLast != 0 {
		m.end = f.nxt + 1
		f.cut++
	}
	if f.una == f.nxt {
		f.progressAt = c.now // however long it has waited for its turn
	}
	csn := f.nxt
	f.nxt++
	*f.chunk(csn) = ch
	c.stats.Chunks++
	c.transmit(f, csn, i)
	return sentOne
}

// nextPiece fills ch with what comes next of m. FlagLast says that it is the last piece.
func (c *Conn) nextPiece(m *message, ch *chunk) {
	left := m.Length - m.off
	ch.off, ch.len = m.off, min(left, c.cfg.ChunkBytes)
	if m.off < m.Break {
		ch.len = min(ch.len, m.Break-m.off)
	}
	switch m.Kind {
	case MsgSend:
		ch.op = wire.OpEager
	case MsgWriteImm:
		if left == 0 {
			ch.op = wire.OpNotify
		}
	case MsgWrite, MsgSide:
	}
	if ch.len == left && (m.Kind != MsgWriteImm || ch.op == wire.OpNotify) {
		ch.flags = wire.FlagLast
	}
	if ch.op != 0 {
		ch.flags |= m.Flags
	}
}

// startSide starts a side message when everything before it is acknowledged.
func (c *Conn) startSide(f *flow, m *message) turn {
	if f.una != f.nxt {
		return flowWaits
	}
	m.begun, m.side, m.end = true, true, f.nxt
	f.cut++
	f.sides++
	a := c.act(ActSide)
	a.Flow, a.Token = f.number, m.Token
	c.mark(f)
	return sentOne
}

// onSide ends a side message.
func (c *Conn) onSide(f *flow, ev *Event) {
	for i := f.reported; i < f.cut; i++ {
		if m := f.message(i); m.side && m.Token == ev.Token {
			f.sides--
			if ev.Status != statusSuccess {
				c.report(f)
				c.fail(f, ev.Status)
			}
			m.side = false
			return
		}
	}
}

// transmit sends a chunk on path i, which has room.
func (c *Conn) transmit(f *flow, csn uint64, i int) {
	c.mark(f)
	ch, p := f.chunk(csn), &c.paths[i]
	m := f.message(ch.msg)
	*p.entry(p.next) = entry{csn: csn, msg: ch.msg, sentAt: c.now, flow: f.number}
	again := ch.xmits > 0
	if again {
		c.stats.Retransmitted++
		ch.moved = ch.moved || int(ch.path) != i || ch.epoch != p.epoch
	}
	ch.path, ch.epoch, ch.pseq, ch.sentAt, ch.state = uint16(i), p.epoch, p.next, c.now, chunkFlying
	p.next++
	p.inflight += int(ch.len)
	p.flying++
	c.flying++
	c.flyingBytes += int(ch.len)
	m.refs++
	c.cfg.Congestion.OnSent(c.now, int(ch.len))

	a := c.act(ActSend)
	a.Flow, a.Path, a.Epoch, a.Token, a.Offset, a.Len = f.number, uint16(i), p.epoch, m.Token, ch.off, ch.len
	a.Imm = wire.Imm{Kind: wire.KindData, AckReq: again || c.asksAck(f, csn, ch), Flow: f.number, CSN: uint16(csn)}
	if again || ch.op != 0 {
		a.Imm.Kind = wire.KindChunk
		a.Header = wire.Header{Op: ch.op, Xmit: ch.xmits, OrigPath: ch.origPath, OrigEpoch: ch.origEpoch, Len: ch.len}
		c.fillHeader(&a.Header, m, ch)
	}
	ch.xmits++
}

func (c *Conn) fillHeader(h *wire.Header, m *message, ch *chunk) {
	if ch.op == 0 {
		h.Op = wire.OpWrite
		return
	}
	h.Flags, h.Message, h.Offset, h.Imm = ch.flags, m.number, ch.off, m.Imm
	if ch.op == wire.OpNotify {
		h.Offset = m.Length
	}
	if h.Flags&wire.FlagImm == 0 {
		h.Imm = 0
	}
}

// asksAck reports whether a new chunk asks for an acknowledgement at once: the last one for
// now, one that closes the window, and every ackEvery-th.
func (c *Conn) asksAck(f *flow, csn uint64, ch *chunk) bool {
	return csn%ackEvery == ackEvery-1 || f.nxt-f.una == uint64(len(f.chunks)) ||
		c.flying >= c.window || (ch.flags&wire.FlagLast != 0 && f.cut == f.posted)
}

// report completes messages of a flow in order, and reports whether there were any.
func (c *Conn) report(f *flow) bool {
	before := f.reported
	for f.reported < f.cut {
		m := f.message(f.reported)
		if m.end > f.una || m.refs != 0 || m.side {
			break
		}
		f.reported++
		c.complete(f, m.Token, statusSuccess)
	}
	return f.reported != before
}

// fail ends a flow: the oldest message that is not done ends with status, the others are
// flushed. Before that nothing refers to their memory any more: paths that might are reset, all
// of them with the last flow.
func (c *Conn) fail(f *flow, status uint8) {
	if f.failed {
		return
	}
	f.failed = true
	if !f.faulty { // whatever the peer still sends ends as if nobody were there
		f.faulty, f.fault = true, statusRetryExc
	}
	c.alive--
	c.touch(f)
	c.resetFor(f)
	for csn := f.una; csn < f.nxt; csn++ {
		ch := f.chunk(csn)
		switch ch.state {
		case chunkFlying:
			c.land(&c.paths[ch.path], ch)
		case chunkLost:
			c.lost--
		case chunkAcked:
			continue
		}
		c.unsend(ch.len)
	}
	f.lostCount = 0
	f.probeAt, f.nonceAt = never, never
	c.report(f)
	for i := f.cut; i < f.posted; i++ {
		m := f.message(i)
		c.demand -= uint64(m.Length - m.off)
	}
	for ; f.reported < f.posted; f.reported++ {
		c.complete(f, f.message(f.reported).Token, status)
		status = statusFlush
	}
	f.cut, f.una = f.posted, f.nxt
	for i := range c.paths {
		c.sweep(i, &c.paths[i]) // makes room for other flows
	}
}

// resetFor takes the paths out of service that may still refer to memory of a flow that fails.
func (c *Conn) resetFor(f *flow) {
	for i := range c.paths {
		p := &c.paths[i]
		if c.over() || c.refers(p, f) {
			c.down(i)
		}
		if c.over() {
			p.timerAt = never
		}
	}
	if c.over() {
		c.reorderAt, c.askAt = never, never
	}
}

// refers reports whether a transmission of f on p may still need its memory.
func (c *Conn) refers(p *path, f *flow) bool {
	for k := p.done; k != p.next; k++ {
		if p.entry(k).flow == f.number {
			return true
		}
	}
	return false
}
