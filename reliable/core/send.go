package core

import (
	"ibverbx/internal/ring"
	"ibverbx/reliable/wire"
)

const (
	// ackEvery is the number of a flow's new chunks per requested acknowledgement, without Carrier.AckBytes.
	ackEvery = 8
	// maxXmits is the maximum number of transmissions of a chunk. Its count has eight bits.
	maxXmits = 255
	// maxSilentXmits is the number of transmissions after which probes no longer retransmit a chunk. The others remain for a peer that
	// responds after a long silence.
	maxSilentXmits = maxXmits / 2
	// maxSamePath is the maximum number of transmissions of a chunk on a path that works but loses it again
	// and again.
	maxSamePath = 8
)

// sender is the sending half of a flow.
//
//	reported <= cut <= posted    messages: completed, cut into chunks, posted
//	una <= nxt                   chunks: the oldest unacknowledged, the next to make
type sender struct {
	msgs      []message // message i is at i modulo the length, a power of two
	depth     int       // the maximum of posted-reported
	posted    uint64    // counts posted messages
	cut       uint64    // counts messages cut into chunks; the next one may be cut in part
	reported  uint64    // counts completed messages
	messageNo uint32    // the number of the next message that consumes a receive

	chunks    []chunk  // chunk csn is at csn modulo the length, a power of two; grows to the window
	una       uint64   // the oldest unacknowledged chunk
	nxt       uint64   // the next new chunk
	wrote     uint64   // one above the last chunk of a WRITE
	barrier   uint64   // no chunk of a WRITE is sent before all chunks below are acknowledged; see startFetch
	lostCount int      // the number of chunks to be retransmitted
	acked     []uint32 // by path, one above the last transmission known to have arrived
	rackAt    int64    // the send time of the latest transmission known to have arrived

	recvLimit uint32 // the first message without a receive at the peer
	noRecv    bool   // set while message cut waits for a receive
	noRecvAt  int64  // the start of that wait

	recvCredit recvCredit

	probeAt    int64  // the time of the next probe, or never
	probes     uint8  // counts the probes since the last progress
	recvProbes uint8  // counts the probes that request a receive
	nonce      uint32 // the nonce of the last Solicit
	probed     uint32 // the nonce of the last Solicit that was a probe
	nonceAt    int64  // the time of the last probe, or never after its response
	busy       bool   // set if giveUp applies: data is pending or unacknowledged
	progressAt int64  // the last progress of the flow
}

// message is a posted message.
type message struct {
	Message
	number uint32 // its number among the messages that consume a receive, or among the fetches
	off    uint32 // the number of bytes cut into chunks
	end    uint64 // one above its last chunk
	refs   int32  // the number of transmissions that refer to its memory
	begun  bool   // set once a chunk is cut
	waits  bool   // set for a fetch without its complete response
}

// chunk is a fragment of a message.
type chunk struct {
	msg       uint64           // its message; answerBit marks a response
	off       uint32           // its offset in the message
	len       uint32           // its length in bytes
	op        wire.Op          // 0 for a piece of a WRITE
	flags     wire.HeaderFlags // FlagLast marks the last chunk of the message
	origPath  uint16           // the path of its first transmission
	origEpoch uint16           // the epoch of its first transmission

	state  chunkState
	xmits  uint8  // counts its transmissions
	moved  bool   // set if it was sent on more than one path
	path   uint16 // the path of its last transmission
	epoch  uint16 // the epoch of path at its last transmission
	pseq   uint32 // the number of its last transmission on path
	sentAt int64  // the time of its last transmission
}

type chunkState uint8

const (
	chunkFlying chunkState = iota
	chunkLost
	chunkAcked
)

func (s *sender) init(c *Conn, depth int) {
	s.msgs = make([]message, ring.CeilPow2(depth))
	s.chunks = make([]chunk, min(firstTableLen, c.cfg.Window))
	s.depth = depth
	s.acked = make([]uint32, len(c.paths))
	for i := range c.paths {
		s.acked[i] = c.paths[i].next
	}
	s.rackAt, s.probeAt, s.nonceAt = -never, never, never
}

func (s *sender) message(i uint64) *message { return &s.msgs[i&uint64(len(s.msgs)-1)] }
func (s *sender) chunk(csn uint64) *chunk   { return &s.chunks[csn&uint64(len(s.chunks)-1)] }

// message returns the message or the response with the given number.
func (f *flow) message(i uint64) *message {
	if i&answerBit != 0 {
		return f.answers.message(uint32(i))
	}
	return f.send.message(i)
}

// post posts a message. On a failed flow it fails at once. If no message has reported the reason, this
// one does.
func (f *flow) post(m *Message) {
	s := &f.send
	if f.failed {
		f.complete(m.Token, f.nextStatus)
		f.nextStatus = statusFlush
		return
	}
	if s.posted-s.reported >= uint64(s.depth) {
		panic("core: a message was posted although Room is 0")
	}
	slot := s.message(s.posted)
	*slot = message{Message: *m}
	if m.Kind == MsgWriteImm || m.Kind == MsgSend {
		slot.number = s.messageNo
		s.messageNo++
	}
	s.posted++
	f.c.credits.demand += uint64(m.Length)
}

func (f *flow) complete(token uint32, status uint8) {
	a := f.c.act(ActComplete)
	a.Flow, a.Token, a.Status = f.number, token, status
}

// dispatch sends all permitted chunks: lost chunks first, then one new chunk of every ready flow, round-robin.
func (c *Conn) dispatch() {
	c.credits.blocked = false
	if c.lost > 0 {
		c.resendAll()
	}
	for c.ready.Len() > 0 {
		f := c.flows[*c.ready.Front()]
		t := flowWaits
		if !f.failed && f.pending() {
			if t = f.sendNew(); t == flowWaits {
				f.markTouched() // it may have to request receives
			}
		}
		if t == connWaits {
			return
		}
		c.ready.Drop(1)
		if f.inReady = t == sentOne; f.inReady {
			c.ready.Push(f.number)
		}
	}
}

// resendAll retransmits lost chunks of all flows.
func (c *Conn) resendAll() {
	kept := 0
	for i := 0; i < len(c.lossy); i++ {
		f := c.flows[c.lossy[i]]
		if f.send.lostCount > 0 && !f.suspended {
			f.resendLost()
		}
		if f.inLossy = f.send.lostCount > 0; f.inLossy {
			c.lossy[kept] = f.number
			kept++
		}
	}
	c.lossy = c.lossy[:kept]
}

// resendLost retransmits the flow's lost chunks, oldest first, until the paths are full.
func (f *flow) resendLost() {
	s, c := &f.send, f.c
	left := s.lostCount
	for csn := s.una; csn < s.nxt && left > 0; csn++ {
		ch := s.chunk(csn)
		if ch.state != chunkLost {
			continue
		}
		left--
		if !c.fitsWindows(int(ch.len)) {
			return
		}
		if ch.xmits == maxXmits {
			f.fail(statusRetryExc)
			return
		}
		if p := c.pathAgain(ch); p != nil {
			f.unlose(ch)
			f.transmit(csn, p)
		}
	}
}

// pathAgain returns the path for the retransmission of a chunk, or nil. It is the path of the last transmission
// while that path carries data; see the fence in the package comment. Without a fence any path will do, but a
// suspect path is tested with its own lost chunks.
func (c *Conn) pathAgain(ch *chunk) *path {
	if p := &c.paths[ch.path]; p.epoch == ch.epoch && p.carries() && (!c.cfg.Carrier.Software || p.state == PathSuspect) {
		if ch.xmits < maxSamePath || ch.moved || p.state != PathUp || len(c.up) <= 1 {
			return p.ifHasRoom()
		}
		p.down()
	}
	return c.choose(ch.len)
}

// ifHasRoom returns the path, or nil if it is full.
func (p *path) ifHasRoom() *path {
	if p.hasRoom() {
		return p
	}
	return nil
}

// fitsWindows reports whether a transmission of n bytes fits the windows.
func (c *Conn) fitsWindows(n int) bool {
	return c.flying == 0 || (c.flying < c.window && c.congestion.allows(n))
}

// sendResult is the result of a flow's turn.
type sendResult uint8

const (
	// sentOne means that the flow has used its turn.
	sentOne sendResult = iota
	// flowWaits means that the flow waits for one of its own resources.
	flowWaits
	// connWaits means that the flow waits for a resource of the connection.
	connWaits
)

// sendNew cuts one chunk of the flow and sends it.
func (f *flow) sendNew() sendResult {
	s, c := &f.send, f.c
	if s.nxt-s.una >= uint64(c.cfg.Window) {
		return flowWaits
	}
	var ch chunk
	m, index := f.pick(&ch)
	if m == nil {
		return flowWaits
	}
	if !c.fitsWindows(int(ch.len)) || !c.credits.has(ch.len) {
		return connWaits
	}
	p := c.choose(ch.len)
	if p == nil {
		return connWaits
	}
	ch.msg = index
	ch.origPath, ch.origEpoch = p.index, p.epoch
	m.begun = true
	m.off += ch.len
	c.credits.sent += uint64(ch.len)
	f.answers.own = m.Kind == MsgAnswer
	if ch.flags&wire.FlagLast != 0 {
		m.end = s.nxt + 1
		f.finishCut(m, index)
	}
	if s.una == s.nxt {
		s.progressAt = c.now // the wait for its turn does not count
	}
	csn := s.nxt
	s.nxt++
	if ch.op == 0 {
		s.wrote = s.nxt
	}
	if csn-s.una == uint64(len(s.chunks)) {
		s.chunks = grown(s.chunks, s.una, csn)
	}
	*s.chunk(csn) = ch
	c.stats.Chunks++
	f.transmit(csn, p)
	return sentOne
}

// transmit sends a chunk on p, which is not full.
func (f *flow) transmit(csn uint64, p *path) {
	f.markTouched()
	s, c := &f.send, f.c
	ch := s.chunk(csn)
	m := f.message(ch.msg)
	again := ch.xmits > 0
	if again {
		c.stats.Retransmitted++
		p.stats.Retransmitted++
		ch.moved = ch.moved || ch.path != p.index || ch.epoch != p.epoch
	}
	ch.path, ch.epoch, ch.pseq, ch.sentAt, ch.state = p.index, p.epoch, p.next, c.now, chunkFlying
	p.append(entry{csn: csn, msg: ch.msg, sentAt: c.now, flow: f.number})
	p.stats.Sent++
	p.inflight += int(ch.len)
	p.flying++
	c.flying++
	c.flyingBytes += int(ch.len)
	m.refs++
	c.congestion.onSent()

	a := c.act(ActSend)
	a.Flow, a.Path, a.Epoch, a.Token, a.Offset, a.Len = f.number, p.index, p.epoch, m.Token, ch.off, ch.len
	a.Imm = wire.Imm{Kind: wire.KindData, AckReq: again || f.asksAck(csn, ch), Flow: f.number, CSN: uint16(csn)}
	if again || ch.op != 0 || c.cfg.Carrier.Software {
		a.Imm.Kind = wire.KindChunk
		a.Header = wire.Header{Op: wire.OpWrite, Xmit: ch.xmits, OrigPath: ch.origPath, OrigEpoch: ch.origEpoch, Len: ch.len}
		if ch.op != 0 {
			fillHeader(&a.Header, m, ch)
		}
		if c.cfg.Carrier.Software {
			a.Header.Flags |= wire.FlagLap
			a.Header.OrigPath, a.Header.OrigEpoch, a.Header.Lap = 0, 0, lapOf(csn)
		}
	}
	ch.xmits++
}

// lapOf returns the bits of a chunk's number above those in the immediate. Without a fence, they distinguish a late
// transmission from a chunk that is 65,536 later.
func lapOf(csn uint64) uint16 { return uint16(csn>>16) & (1<<wire.LapBits - 1) }

// fillHeader fills in the fields of a chunk that does not belong to a WRITE.
func fillHeader(h *wire.Header, m *message, ch *chunk) {
	h.Op, h.Flags, h.Message, h.Offset = ch.op, ch.flags, m.number, ch.off
	switch ch.op {
	case wire.OpNotify:
		h.Offset = m.Length
	case wire.OpFetch:
		h.Offset = m.Answer
	case wire.OpWrite, wire.OpEager, wire.OpAnswer:
	}
	if h.Flags&wire.FlagImm != 0 {
		h.Imm = m.Imm
	}
}

// asksAck reports whether a new chunk requests an immediate acknowledgement: the last pending one, one
// that closes the window, and one every ackEvery chunks or 2*AckBytes.
func (f *flow) asksAck(csn uint64, ch *chunk) bool {
	s, every := &f.send, uint64(ackEvery)
	if n := f.c.cfg.Carrier.AckBytes; n > 0 {
		every = max(2*uint64(n)/uint64(f.c.cfg.ChunkBytes), 1)
	}
	return csn%every == every-1 || s.nxt-s.una == uint64(f.c.cfg.Window) ||
		f.c.flying >= f.c.window || f.c.congestion.phase == phaseDrain || (ch.flags&wire.FlagLast != 0 && !f.pending())
}

// report completes messages and responses of the flow in order, and reports whether there were any.
func (f *flow) report() bool {
	s := &f.send
	released, before := f.releaseAnswers(), s.reported
	for s.reported < s.posted {
		m := s.message(s.reported)
		if m.begun && m.Status != statusSuccess {
			f.fail(m.Status) // refused by the peer, or without memory for its response
			break
		}
		if s.reported == s.cut || m.end > s.una || m.refs != 0 || m.waits {
			break
		}
		s.reported++
		f.complete(m.Token, statusSuccess)
	}
	return released || s.reported != before
}

// fail fails the flow. Its oldest incomplete message fails with status, the others are flushed.
// Before that, every path that may still refer to their memory is reset. The last flow resets all
// paths.
func (f *flow) fail(status uint8) {
	if f.failed {
		return
	}
	s, c := &f.send, f.c
	f.failed = true
	if !f.recv.faulty { // later chunks of the peer fail as if this side had exited
		f.recv.faulty, f.recv.fault = true, statusRetryExc
	}
	c.alive--
	f.touch()
	f.resetPaths()
	for csn := s.una; csn < s.nxt; csn++ {
		ch := s.chunk(csn)
		switch ch.state {
		case chunkFlying:
			c.paths[ch.path].endFlight(ch)
		case chunkLost:
			c.lost--
		case chunkAcked:
			continue
		}
		c.credits.unsend(ch.len)
	}
	s.lostCount = 0
	s.probeAt, s.nonceAt = never, never
	f.report()
	for i := s.cut; i < s.posted; i++ {
		m := s.message(i)
		c.credits.demand -= uint64(m.Length - m.off)
	}
	f.dropAnswers()
	f.nextStatus = statusFlush
	if s.reported == s.posted {
		f.nextStatus = status
	}
	for ; s.reported < s.posted; s.reported++ {
		f.complete(s.message(s.reported).Token, status)
		status = statusFlush
	}
	s.cut, s.una = s.posted, s.nxt
	c.sweep() // frees ledger entries for other flows
}

// resetPaths takes the paths out of service that may still refer to memory of the failed flow. Shared QPs only
// release the references.
func (f *flow) resetPaths() {
	c := f.c
	over := c.Over()
	for i := range c.paths {
		p := &c.paths[i]
		switch {
		case c.cfg.Carrier.Shared:
			p.unrefAll(over || p.refers(f))
		case over || p.refers(f):
			p.down()
		}
		if over {
			p.timerAt = never
		}
	}
	if over {
		c.rack.reorderAt, c.credits.requestAt, c.congestion.drain.until, c.credits.reportDue = never, never, never, true
	}
}
