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
func (c *Conn) post(m *Message) {
	if c.failed {
		a := c.act(ActComplete)
		a.Token, a.Status = m.Token, statusFlush
		return
	}
	if c.Room() == 0 {
		panic("core: a message was posted although Room is 0")
	}
	slot := c.message(c.posted)
	*slot = message{Message: *m}
	if m.Kind == MsgWriteImm || m.Kind == MsgSend {
		slot.number = c.messageNo
		c.messageNo++
	}
	c.posted++
	c.demand += uint64(m.Length)
}

// dispatch sends what may be sent: what was lost first.
func (c *Conn) dispatch() {
	if c.lostCount > 0 {
		c.resendLost()
	}
	c.noRecv, c.blocked = false, false
	for c.cut < c.posted && c.sendNew() {
		if c.failed {
			return
		}
	}
}

// resendLost sends lost chunks again, oldest first, as far as their paths have room.
func (c *Conn) resendLost() {
	left := c.lostCount
	for csn := c.una; csn < c.nxt && left > 0; csn++ {
		ch := c.chunk(csn)
		if ch.state != chunkLost {
			continue
		}
		left--
		if !c.mayFly(int(ch.len)) {
			return
		}
		if ch.xmits == maxXmits {
			c.fail(statusRetryExc)
			return
		}
		if i := c.pathAgain(ch); i >= 0 {
			c.unlose(csn)
			c.transmit(csn, i)
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

// sendNew cuts one chunk from the front message and sends it, and reports whether it is worth
// while to go on.
func (c *Conn) sendNew() bool {
	m := c.message(c.cut)
	if m.Fence && !m.begun && c.reported != c.cut {
		return false
	}
	if m.Kind == MsgSide {
		return c.startSide(m)
	}
	if c.nxt-c.una >= uint64(len(c.chunks)) {
		return false
	}
	var ch chunk
	c.nextPiece(m, &ch)
	if ch.op != 0 && c.sides > 0 {
		return false // the receiver is not told if something before fails
	}
	if ch.op != 0 && int32(m.number-c.recvLimit) >= 0 {
		c.noRecv = true
		return false
	}
	if !c.mayFly(int(ch.len)) || !c.hasCredit(ch.len) {
		return false
	}
	i := c.choose(ch.len)
	if i < 0 {
		return false
	}
	ch.msg = c.cut
	ch.origPath, ch.origEpoch = uint16(i), c.paths[i].epoch
	m.begun = true
	m.off += ch.len
	c.sent += uint64(ch.len)
	if ch.flags&wire.FlagLast != 0 {
		m.end = c.nxt + 1
		c.cut++
	}
	csn := c.nxt
	c.nxt++
	*c.chunk(csn) = ch
	c.stats.Chunks++
	c.transmit(csn, i)
	return true
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
func (c *Conn) startSide(m *message) bool {
	if c.una != c.nxt {
		return false
	}
	m.begun, m.side, m.end = true, true, c.nxt
	c.cut++
	c.sides++
	a := c.act(ActSide)
	a.Token = m.Token
	return true
}

// onSide ends a side message.
func (c *Conn) onSide(ev *Event) {
	for i := c.reported; i < c.cut; i++ {
		if m := c.message(i); m.side && m.Token == ev.Token {
			c.sides--
			if ev.Status != statusSuccess {
				c.report()
				c.fail(ev.Status)
			}
			m.side = false
			return
		}
	}
}

// transmit sends a chunk on path i, which has room.
func (c *Conn) transmit(csn uint64, i int) {
	ch, p := c.chunk(csn), &c.paths[i]
	m := c.message(ch.msg)
	*p.entry(p.next) = entry{csn: csn, msg: ch.msg, sentAt: c.now}
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
	a.Path, a.Epoch, a.Token, a.Offset, a.Len = uint16(i), p.epoch, m.Token, ch.off, ch.len
	a.Imm = wire.Imm{Kind: wire.KindData, AckReq: again || c.asksAck(csn, ch), CSN: uint16(csn)}
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
func (c *Conn) asksAck(csn uint64, ch *chunk) bool {
	return csn%ackEvery == ackEvery-1 || c.nxt-c.una == uint64(len(c.chunks)) ||
		c.flying >= c.window || (ch.flags&wire.FlagLast != 0 && c.cut == c.posted)
}

// report completes messages in order.
func (c *Conn) report() {
	for c.reported < c.cut {
		m := c.message(c.reported)
		if m.end > c.una || m.refs != 0 || m.side {
			return
		}
		c.reported++
		a := c.act(ActComplete)
		a.Token, a.Status = m.Token, statusSuccess
	}
}

// fail ends the connection: all paths are reset, the oldest message that is not done ends
// with status, the others are flushed.
func (c *Conn) fail(status uint8) {
	if c.failed {
		return
	}
	c.failed = true
	for i := range c.paths {
		c.down(i)
		c.paths[i].timerAt = never
	}
	c.reorderAt, c.probeAt, c.nonceAt, c.askAt = never, never, never, never
	c.report()
	for c.reported < c.posted {
		a := c.act(ActComplete)
		a.Token, a.Status = c.message(c.reported).Token, status
		status = statusFlush
		c.reported++
	}
	c.cut = c.posted
	c.una, c.lostCount, c.flying, c.flyingBytes = c.nxt, 0, 0, 0
}
