package core

import "ibverbx/reliable/wire"

// Acknowledgements leave at once when one of these many chunks or bytes wait for one.
const (
	ackChunks = 4
	ackBytes  = 128 << 10
)

// receiver is the receiving half.
type receiver struct {
	rcvNxt   uint64 // the first chunk that has not arrived
	have     []bool // by csn % window
	slots    []slot
	highest  uint64 // one above the last chunk that has arrived
	faulty   bool   // the chunk at rcvNxt cannot be taken
	fault    uint8
	message  uint32 // the message that takes the next receive
	placed   uint32 // bytes of it that are in order
	posted32 uint32 // receives that the user has posted
	told     uint32 // of which the peer knows
	credit   int    // receives that this end keeps for what arrives

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
	stale     uint32 // duplicates and questions in a row
	ackRoute  Route
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

func (c *Conn) initReceiver() {
	c.have = make([]bool, c.cfg.Window)
	c.slots = make([]slot, c.cfg.Window)
	c.ackAt = never
	c.credit = c.cfg.RecvCredit
}

// onData takes a piece of a WRITE that the NIC has placed.
func (c *Conn) onData(ev *Event) {
	if csn, ok := c.fresh(ev, 0); ok {
		c.echo(ev.Imm.CSN, 0)
		c.accept(csn, slot{}, ev.Count)
	}
}

// onChunk takes a chunk that has to be placed.
func (c *Conn) onChunk(ev *Event) {
	h := &ev.Header
	csn, ok := c.fresh(ev, h.Xmit)
	if !ok {
		return
	}
	if ev.Status == StatusNoRecv || !c.fenced(ev) {
		c.stats.Refused++
		c.ackNow = true
		return
	}
	s := slot{status: ev.Status, len: h.Len}
	if h.Op != wire.OpWrite {
		s.op, s.flags, s.message, s.offset, s.imm = h.Op, h.Flags, h.Message, h.Offset, h.Imm
	}
	if ev.Status == statusSuccess {
		c.echo(ev.Imm.CSN, h.Xmit)
		c.act(ActPlace)
	}
	c.accept(csn, s, int(h.Len))
}

// fresh reports whether a chunk is new and within the window. Whatever it is, it leads to an
// acknowledgement: a duplicate means that the last one was lost.
func (c *Conn) fresh(ev *Event, xmit uint8) (uint64, bool) {
	if c.failed || ev.Imm.Flow != 0 {
		c.stats.Refused++
		return 0, false
	}
	if ev.Imm.AckReq {
		c.ackNow = true
	}
	d := int64(int16(ev.Imm.CSN - uint16(c.rcvNxt)))
	csn := c.rcvNxt + uint64(d)
	switch {
	case d >= int64(len(c.have)):
		c.stats.Refused++
		c.ackNow = true
		return 0, false
	case d < 0 || c.have[csn&uint64(len(c.have)-1)]:
		c.stats.Duplicates++
		c.ackNow, c.dup = true, true
		c.stale++
		c.echo(ev.Imm.CSN, xmit)
		return 0, false
	}
	return csn, true
}

// echo remembers the transmission that the next acknowledgement repeats: one that was taken,
// now or before.
func (c *Conn) echo(csn uint16, xmit uint8) {
	c.echoing, c.echoCSN, c.echoXmit, c.echoAt = true, csn, xmit, c.now
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
func (c *Conn) accept(csn uint64, s slot, bytes int) {
	mask := uint64(len(c.have) - 1)
	gap := csn != c.rcvNxt
	if gap && csn+1 > c.highest && (c.highest <= c.rcvNxt || csn > c.highest) {
		c.ackNow = true // the first sight of a gap
	}
	if !gap && c.highest > c.rcvNxt {
		c.ackNow = true // a gap is closed
	}
	c.have[csn&mask] = true
	c.slots[csn&mask] = s
	c.highest = max(c.highest, csn+1)
	c.stale = 0
	c.arrived += uint64(bytes)
	c.pledge(0)
	c.owed++
	c.owedBytes += bytes
	if c.owed >= ackChunks || c.owedBytes >= ackBytes {
		c.ackNow = true
	}
	if c.ackAt == never {
		c.ackAt = c.now + c.cfg.AckDelay
	}
	for c.have[c.rcvNxt&mask] && !c.faulty {
		if !c.inOrder(&c.slots[c.rcvNxt&mask]) {
			return
		}
		c.have[c.rcvNxt&mask] = false
		c.rcvNxt++
	}
}

// inOrder takes the chunk that is next, and reports whether it can be taken.
func (c *Conn) inOrder(s *slot) bool {
	switch {
	case s.status != statusSuccess:
		c.refuse(s.status)
		return false
	case s.op == 0:
		return true
	case s.message != c.receiver.message || (s.op == wire.OpEager && s.offset != c.placed) ||
		(s.op == wire.OpNotify && c.placed != 0):
		c.refuse(statusInvalid) // the peer does not count as it should
		return false
	}
	c.placed += s.len
	if s.flags&wire.FlagLast == 0 {
		return true
	}
	a := c.act(ActDeliver)
	a.Len = c.placed
	if s.op == wire.OpNotify {
		a.Len = s.offset
	}
	a.Header = wire.Header{Op: s.op, Flags: s.flags, Message: s.message, Imm: s.imm}
	c.placed = 0
	c.receiver.message++
	return true
}

// refuse ends the receiving half at the chunk that is next.
func (c *Conn) refuse(status uint8) {
	c.faulty, c.fault, c.ackNow = true, status, true
	a := c.act(ActFault)
	a.Status = status
}

// onSolicit answers a question at once.
func (c *Conn) onSolicit(r *wire.Record) {
	c.nonceDue, c.dueNonce, c.ackNow = true, r.Nonce, true
	c.stale++
}

// onReceives tells the peer of receives that the user has posted, at once if it had none.
func (c *Conn) onReceives(n int) {
	none := c.told == c.receiver.message
	c.posted32 += uint32(n)
	switch {
	case none:
		c.ackNow = true
	case c.ackAt == never:
		c.ackAt = c.now + c.cfg.AckDelay
	}
}

// flushAck acknowledges what waits for it.
func (c *Conn) flushAck() {
	if c.owed > 0 || c.told != c.posted32 {
		c.ackNow = true
	}
	c.ackAt = never
}

// ackIfDue sends an acknowledgement if one is due, and the fault if there is one.
func (c *Conn) ackIfDue() {
	if !c.ackNow {
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
	c.fillAck(&a.Record)
	if c.faulty {
		a := c.act(ActControl)
		a.Route = c.ackRoute
		a.Record = wire.Record{Type: wire.Fault, Status: c.fault, CSN: uint16(c.rcvNxt)}
	}
	c.stats.Acks++
	c.ackNow, c.dup, c.echoing, c.nonceDue = false, false, false, false
	c.owed, c.owedBytes, c.ackAt = 0, 0, never
	c.told = c.posted32
}

func (c *Conn) fillAck(r *wire.Record) {
	*r = wire.Record{
		Type: wire.Ack, Cum: uint16(c.rcvNxt),
		Window: uint16(c.credit), RecvLimit: c.posted32,
	}
	if c.dup {
		r.Flags |= wire.AckDup
	}
	if c.echoing {
		r.Flags |= wire.AckEcho
		r.EchoCSN, r.EchoXmit = c.echoCSN, c.echoXmit
		r.RxDelay = uint32(min(c.now-c.echoAt, 1<<32-1))
	}
	if c.nonceDue {
		r.Flags |= wire.AckNonce
		r.Nonce = c.dueNonce
	}
	if c.faulty {
		return // what is beyond will never be in order
	}
	mask := uint64(len(c.have) - 1)
	for csn := c.rcvNxt + 1; csn < c.highest; csn++ {
		if c.have[csn&mask] && c.slots[csn&mask].status == statusSuccess {
			bit := csn - c.rcvNxt - 1
			r.Bitmap[bit/64] |= 1 << (bit % 64)
			r.Words = uint8(bit/64 + 1)
		}
	}
}
