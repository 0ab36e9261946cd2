package core

import "ibverbx/reliable/wire"

// Acknowledgements leave at once when one of these many chunks or bytes wait for one.
const (
	ackChunks = 4
	ackBytes  = 128 << 10
)

// receiver is the receiving half of a flow.
type receiver struct {
	rcvNxt   uint64 // the first chunk that has not arrived
	have     []bool // by csn % window
	slots    []slot
	highest  uint64 // one above the last chunk that has arrived
	faulty   bool   // the chunk at rcvNxt cannot be taken
	fault    uint8
	turn     uint32 // the message that takes the next receive
	placed   uint32 // bytes of it that are in order
	posted32 uint32 // receives that the user has posted
	told     uint32 // of which the peer knows

	ackAt     int64
	ackNow    bool
	dup       bool
	owed      int // chunks that wait for an acknowledgement
	owedBytes int
	echoing   bool
	echoCSN   uint16
	echoXmit  uint8
	echoAt    int64
	nonceDue  bool
	dueNonce  uint32
}

// slot is what is known of a chunk that has arrived and is not in order yet.
type slot struct {
	op      wire.Op // 0 for a piece of a WRITE
	flags   wire.HeaderFlags
	status  uint8
	message uint32
	offset  uint32
	imm     uint32
	len     uint32
}

func (r *receiver) initReceiver(window int) {
	r.have = make([]bool, window)
	r.slots = make([]slot, window)
	r.ackAt = never
}

// onRecvCredit takes how many receives this end keeps. A peer that has fewer than before is
// told at once: others count on the rest.
func (c *Conn) onRecvCredit(n int) {
	before := c.credit
	c.credit = min(max(n, 1), 1<<16-1)
	if c.credit >= before {
		return
	}
	for _, f := range c.flows {
		if f != nil && !f.failed {
			f.ackNow = true
			c.touch(f)
			return
		}
	}
}

// onData takes a piece of a WRITE that the NIC has placed.
func (c *Conn) onData(ev *Event) {
	if f, csn, ok := c.fresh(ev, 0); ok {
		c.echo(f, ev.Imm.CSN, 0)
		c.accept(f, csn, slot{}, ev.Count)
	}
}

// onChunk takes a chunk that has to be placed.
func (c *Conn) onChunk(ev *Event) {
	h := &ev.Header
	f, csn, ok := c.fresh(ev, h.Xmit)
	if !ok {
		return
	}
	if ev.Status == StatusNoRecv || !c.fenced(ev) {
		c.stats.Refused++
		f.ackNow = true
		return
	}
	s := slot{status: ev.Status, len: h.Len}
	if h.Op != wire.OpWrite {
		s.op, s.flags, s.message, s.offset, s.imm = h.Op, h.Flags, h.Message, h.Offset, h.Imm
	}
	if ev.Status == statusSuccess {
		c.echo(f, ev.Imm.CSN, h.Xmit)
		a := c.act(ActPlace)
		a.Flow = f.number
	}
	c.accept(f, csn, s, int(h.Len))
}

// fresh reports whether a chunk is new and within the window. Whatever it is, it leads to an
// acknowledgement: a duplicate means that the last one was lost.
func (c *Conn) fresh(ev *Event, xmit uint8) (*flow, uint64, bool) {
	f := c.flow(ev.Imm.Flow)
	if f == nil {
		c.stats.Refused++
		return nil, 0, false
	}
	c.touch(f)
	if f.failed {
		c.stats.Refused++
		f.ackNow = true // the answer is a Fault
		return f, 0, false
	}
	if ev.Imm.AckReq {
		f.ackNow = true
	}
	d := int64(int16(ev.Imm.CSN - uint16(f.rcvNxt)))
	csn := f.rcvNxt + uint64(d)
	switch {
	case d >= int64(len(f.have)):
		c.stats.Refused++
		f.ackNow = true
		return f, 0, false
	case d < 0 || f.have[csn&uint64(len(f.have)-1)]:
		c.stats.Duplicates++
		f.ackNow, f.dup = true, true
		c.stale++
		c.echo(f, ev.Imm.CSN, xmit)
		return f, 0, false
	}
	return f, csn, true
}

// echo remembers the transmission that the next acknowledgement repeats: one that was taken,
// now or before.
func (c *Conn) echo(f *flow, csn uint16, xmit uint8) {
	f.echoing, f.echoCSN, f.echoXmit, f.echoAt = true, csn, xmit, c.now
}

// fenced keeps the fence: before a piece of a WRITE is taken from another path than that of
// its original, the QP on which the original might still come is taken out of service. It
// reports whether the piece may be taken.
func (c *Conn) fenced(ev *Event) bool {
	h := &ev.Header
	if h.Op != wire.OpWrite || (h.OrigPath == ev.Path && h.OrigEpoch == ev.Epoch) {
		return true
	}
	if int(h.OrigPath) >= len(c.paths) {
		return false
	}
	p := &c.paths[h.OrigPath]
	switch ahead := int16(h.OrigEpoch - p.epoch); {
	case ahead > 0:
		return false // there never was such an epoch
	case ahead == 0 && p.alive():
		c.stats.Fences++
		c.down(int(h.OrigPath))
	}
	return true
}

// accept notes that a chunk is in place, and goes on with what is in order now.
func (c *Conn) accept(f *flow, csn uint64, s slot, bytes int) {
	mask := uint64(len(f.have) - 1)
	gap := csn != f.rcvNxt
	if gap && csn+1 > f.highest && (f.highest <= f.rcvNxt || csn > f.highest) {
		f.ackNow = true // the first sight of a gap
	}
	if !gap && f.highest > f.rcvNxt {
		f.ackNow = true // a gap is closed
	}
	f.have[csn&mask] = true
	f.slots[csn&mask] = s
	f.highest = max(f.highest, csn+1)
	c.stale = 0
	c.arrived += uint64(bytes)
	c.pledge(0)
	f.owed++
	f.owedBytes += bytes
	if f.owed >= ackChunks || f.owedBytes >= ackBytes {
		f.ackNow = true
	}
	c.owe(f)
	for f.have[f.rcvNxt&mask] && !f.faulty {
		if !c.inOrder(f, &f.slots[f.rcvNxt&mask]) {
			return
		}
		f.have[f.rcvNxt&mask] = false
		f.rcvNxt++
	}
}

// owe notes that a flow owes the peer an acknowledgement, with the end of the batch or later.
func (c *Conn) owe(f *flow) {
	if f.ackAt == never {
		f.ackAt = c.now + c.cfg.AckDelay
	}
	if !f.owing {
		f.owing = true
		c.owing = append(c.owing, f.number)
	}
}

// inOrder takes the chunk that is next, and reports whether it can be taken.
func (c *Conn) inOrder(f *flow, s *slot) bool {
	switch {
	case s.status != statusSuccess:
		c.refuse(f, s.status)
		return false
	case s.op == 0:
		return true
	case s.message != f.turn || (s.op == wire.OpEager && s.offset != f.placed) ||
		(s.op == wire.OpNotify && f.placed != 0):
		c.refuse(f, statusInvalid) // the peer does not count as it should
		return false
	}
	f.placed += s.len
	if s.flags&wire.FlagLast == 0 {
		return true
	}
	a := c.act(ActDeliver)
	a.Flow, a.Len = f.number, f.placed
	if s.op == wire.OpNotify {
		a.Len = s.offset
	}
	a.Header = wire.Header{Op: s.op, Flags: s.flags, Message: s.message, Imm: s.imm}
	f.placed = 0
	f.turn++
	return true
}

// refuse ends the receiving half of a flow at the chunk that is next.
func (c *Conn) refuse(f *flow, status uint8) {
	f.faulty, f.fault, f.ackNow = true, status, true
	a := c.act(ActFault)
	a.Flow, a.Status = f.number, status
}

// onSolicit answers a question at once.
func (c *Conn) onSolicit(f *flow, r *wire.Record) {
	f.nonceDue, f.dueNonce, f.ackNow = true, r.Nonce, true
	c.stale++
}

// onReceives tells the peer of receives that the user has posted, at once if it had none.
func (c *Conn) onReceives(f *flow, n int) {
	none := f.told == f.turn
	f.posted32 += uint32(n)
	if none {
		f.ackNow = true
		return
	}
	c.owe(f)
}

// flush acknowledges what waits for it, of all flows.
func (c *Conn) flush() {
	for _, n := range c.owing {
		f := c.flows[n]
		f.owing = false
		f.flushAck()
		c.touch(f)
	}
	c.owing = c.owing[:0]
}

// flushAck makes an acknowledgement leave if one waits.
func (r *receiver) flushAck() {
	if r.owed > 0 || r.told != r.posted32 {
		r.ackNow = true
	}
	r.ackAt = never
}

// ackIfDue sends an acknowledgement if one is due, and the fault if there is one.
func (c *Conn) ackIfDue(f *flow) {
	if !f.ackNow {
		return
	}
	if c.stale >= 2 {
		c.ackRoute = c.nextRoute() // the peer does not seem to get them
	}
	if c.ackRoute >= RoutePath && !c.paths[c.ackRoute-RoutePath].carries() {
		c.ackRoute = c.route
	}
	a := c.act(ActControl)
	a.Route = c.ackRoute
	c.fillAck(f, &a.Record)
	if f.faulty {
		a := c.act(ActControl)
		a.Route = c.ackRoute
		a.Record = wire.Record{Type: wire.Fault, Flow: f.number, Status: f.fault, CSN: uint16(f.rcvNxt)}
	}
	c.stats.Acks++
	f.ackNow, f.dup, f.echoing, f.nonceDue = false, false, false, false
	f.owed, f.owedBytes, f.ackAt = 0, 0, never
	f.told = f.posted32
}

func (c *Conn) fillAck(f *flow, r *wire.Record) {
	*r = wire.Record{
		Type: wire.Ack, Flow: f.number, Cum: uint16(f.rcvNxt),
		Window: uint16(c.credit), RecvLimit: f.posted32,
	}
	if f.dup {
		r.Flags |= wire.AckDup
	}
	if f.echoing {
		r.Flags |= wire.AckEcho
		r.EchoCSN, r.EchoXmit = f.echoCSN, f.echoXmit
		r.RxDelay = uint32(min(c.now-f.echoAt, 1<<32-1))
	}
	if f.nonceDue {
		r.Flags |= wire.AckNonce
		r.Nonce = f.dueNonce
	}
	if f.faulty {
		return // what is beyond will never be in order
	}
	mask := uint64(len(f.have) - 1)
	for csn := f.rcvNxt + 1; csn < f.highest; csn++ {
		if f.have[csn&mask] && f.slots[csn&mask].status == statusSuccess {
			bit := csn - f.rcvNxt - 1
			r.Bitmap[bit/64] |= 1 << (bit % 64)
			r.Words = uint8(bit/64 + 1)
		}
	}
}
