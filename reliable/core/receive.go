package core

import "ibverbx/reliable/wire"

const (
	// ackChunks is the number of unacknowledged chunks after which an acknowledgement is sent at once, without
	// Carrier.AckBytes.
	ackChunks = 4
	// ackBytes is the payload of unacknowledged chunks after which an acknowledgement is sent at once.
	ackBytes = 128 << 10
)

// receiver is the receiving half of a flow.
type receiver struct {
	next    uint64 // the first chunk that has not arrived
	highest uint64 // one above the last chunk that has arrived
	early   []bool // the chunks that have arrived out of order or are being placed, by csn modulo the window
	slots   []slot // the descriptions of these chunks, by csn modulo the window
	faulty  bool   // set if the chunk at next is unacceptable
	fault   uint8  // the status of the peer's message, if faulty
	// faultDue is set until the fault is reported to the owner; see raiseFault.
	faultDue  bool
	nextRecv  uint32 // the number of the message that consumes the next receive
	placed    uint32 // the bytes of message turn that are in order
	posted    uint32 // counts the receives posted by the user, or granted to the peer
	shared    bool   // set if flows share the receives; see Share
	reported  uint32 // the value of posted last sent to the peer
	placement placement

	ackAt     int64  // the latest time of the next acknowledgement, or never
	ackNow    bool   // set if the current step sends an acknowledgement
	dup       bool   // set if a duplicate arrived since the last acknowledgement
	owed      int    // the number of unacknowledged chunks
	owedBytes int    // the payload of the chunks of owed, in bytes
	echoing   bool   // set if the echo fields are valid
	echoCSN   uint16 // the chunk of the last arrival
	echoXmit  uint8  // the Xmit of the last arrival
	echoAt    int64  // the time of the last arrival
	nonceDue  bool   // set while a Solicit waits for its response
	dueNonce  uint32 // the nonce of that Solicit
}

// slot describes a chunk that has arrived out of order.
type slot struct {
	op      wire.Op          // 0 for a chunk of a WRITE
	flags   wire.HeaderFlags // those of the header
	status  uint8            // the result of the owner's check
	message uint32           // the number of the message that consumes a receive, or of the fetch
	offset  uint32           // the offset in a SEND or a response, or the length of the WRITE or of the response to a fetch
	imm     uint32           // the user's immediate
	len     uint32           // the length in bytes
}

// at returns the entries of a chunk within the window: whether it has arrived, and its description.
func (r *receiver) at(csn uint64) (*bool, *slot) {
	i := csn & uint64(len(r.early)-1)
	return &r.early[i], &r.slots[i]
}

// onRecvCredit sets the number of receives advertised to the peer. A peer that loses some is notified at
// once, because others use them.
func (c *Conn) onRecvCredit(n int) {
	before := c.control.credit
	c.control.credit = min(max(n, 1), 1<<16-1)
	if c.control.credit >= before {
		return
	}
	for _, f := range c.flows {
		if f != nil && !f.failed {
			f.recv.ackNow = true
			f.touch()
			return
		}
	}
}

// onData processes a chunk of a WRITE placed by the NIC.
func (c *Conn) onData(ev *Event) {
	if c.cfg.Carrier.Software {
		c.stats.Refused++ // the peer's paths do not carry one-sided WRITEs
		return
	}
	if f, csn, ok := c.fresh(ev, 0); ok {
		f.echo(ev.Imm.CSN, 0)
		f.accept(csn, slot{}, ev.Count)
	}
}

// onChunk processes a chunk that software places.
func (c *Conn) onChunk(ev *Event) {
	h := &ev.Header
	if (h.Flags&wire.FlagLap != 0) != c.cfg.Carrier.Software {
		c.stats.Refused++
		return
	}
	f, csn, ok := c.fresh(ev, h.Xmit)
	if !ok {
		return
	}
	status := f.admit(ev)
	if status == StatusNoRecv || !c.fenced(ev) {
		c.stats.Refused++
		f.recv.ackNow = true
		return
	}
	s := slot{status: status, len: h.Len}
	if h.Op != wire.OpWrite {
		s.op, s.flags, s.message, s.offset, s.imm = h.Op, h.Flags, h.Message, h.Offset, h.Imm
	}
	switch status {
	case StatusPlacing:
		f.recv.beginPlacement(csn, s, c.now+c.cfg.AckDelay)
		f.askPlace(h)
		return
	case statusSuccess:
		f.echo(ev.Imm.CSN, h.Xmit)
		f.askPlace(h)
	case statusRemAccess:
		c.act(ActWrongKey).Flow = f.number
	}
	f.accept(csn, s, int(h.Len))
}

// askPlace requests the placement of the current chunk from the owner.
func (f *flow) askPlace(h *wire.Header) {
	a := f.c.act(ActPlace)
	a.Flow = f.number
	switch h.Op {
	case wire.OpFetch:
		a.Token = f.answers.index(h.Message)
	case wire.OpAnswer:
		a.Token = f.fetching(h.Message).Token
	case wire.OpWrite, wire.OpEager, wire.OpNotify:
	}
}

// fresh reports whether a chunk is new and within the window, and returns its flow and number. Any other
// chunk is acknowledged at once: a duplicate shows that the last acknowledgement was lost.
func (c *Conn) fresh(ev *Event, xmit uint8) (*flow, uint64, bool) {
	f := c.flow(ev.Imm.Flow)
	if f == nil {
		c.stats.Refused++
		return nil, 0, false
	}
	f.touch()
	r := &f.recv
	r.ackNow = r.ackNow || ev.Imm.AckReq
	d := int64(int16(ev.Imm.CSN - uint16(r.next)))
	csn := r.next + uint64(d)
	switch have, _ := r.at(csn); {
	case f.failed || d >= int64(len(r.early)):
		c.stats.Refused++ // a failed flow responds with a Fault
	case c.cfg.Carrier.Software && ev.Header.Lap != lapOf(csn):
		c.stats.Refused++ // later than any packet of a network
		return nil, 0, false
	case d < 0 || *have:
		c.stats.Duplicates++
		r.dup = true
		c.control.lostAckHints++
		f.echo(ev.Imm.CSN, xmit)
	default:
		return f, csn, true
	}
	r.ackNow = true
	return f, 0, false
}

// echo records the transmission that the next acknowledgement echoes. It was accepted, now or before.
func (f *flow) echo(csn uint16, xmit uint8) {
	r := &f.recv
	r.echoing, r.echoCSN, r.echoXmit, r.echoAt = true, csn, xmit, f.c.now-f.c.age
}

// fenced enforces the fence. Before a chunk of a WRITE is accepted from another path than that of its
// original, the QP on which the original might still arrive is taken out of service. fenced reports
// whether the chunk may be accepted.
func (c *Conn) fenced(ev *Event) bool {
	h := &ev.Header
	if h.Op != wire.OpWrite || c.cfg.Carrier.Software || (h.OrigPath == ev.Path && h.OrigEpoch == ev.Epoch) {
		return true
	}
	if int(h.OrigPath) >= len(c.paths) {
		return false
	}
	p := &c.paths[h.OrigPath]
	switch ahead := int16(h.OrigEpoch - p.epoch); {
	case ahead > 0:
		return false // that epoch has not started
	case ahead == 0 && p.alive():
		c.stats.Fences++
		p.down()
	}
	return true
}

// accept records that a chunk is in place, and processes all chunks that are now in order.
func (f *flow) accept(csn uint64, s slot, bytes int) {
	r, c := &f.recv, f.c
	gap := csn != r.next
	if gap && !c.cfg.Carrier.Unordered && csn+1 > r.highest && (r.highest <= r.next || csn > r.highest) {
		r.ackNow = true // a gap opens
	}
	if !gap && !c.cfg.Carrier.Unordered && r.highest > r.next {
		r.ackNow = true // a gap is closed
	}
	have, slot := r.at(csn)
	*have, *slot = true, s
	r.highest = max(r.highest, csn+1)
	c.control.lostAckHints = 0
	c.credits.arrived += uint64(bytes)
	r.owed++
	r.owedBytes += bytes
	if n := c.cfg.Carrier.AckBytes; n > 0 && r.owedBytes >= n || n == 0 && (r.owed >= ackChunks || r.owedBytes >= ackBytes) {
		r.ackNow = true
	}
	f.oweAck()
	for !r.faulty {
		have, slot := r.at(r.next)
		if !*have || !f.inOrder(slot) {
			return
		}
		*have = false
		r.next++
	}
}

// oweAck makes the flow acknowledge at the end of the batch, or after AckDelay.
func (f *flow) oweAck() {
	if f.recv.ackAt == never {
		f.recv.ackAt = f.c.now + f.c.cfg.AckDelay
	}
	f.c.markOwing(f)
}

// markOwing makes the next EvFlush process the flow.
func (c *Conn) markOwing(f *flow) {
	if !f.inOwing {
		f.inOwing = true
		c.owing = append(c.owing, f.number)
	}
}

// inOrder processes the next chunk in order, and reports whether it is acceptable.
func (f *flow) inOrder(s *slot) bool {
	r := &f.recv
	switch {
	case s.status == StatusPlacing:
		return false
	case s.status != statusSuccess:
		f.refuse(s.status)
		return false
	case s.op == 0:
		return true
	case s.op == wire.OpFetch:
		return f.acceptFetch(s)
	case s.op == wire.OpAnswer:
		return f.acceptAnswer(s)
	case s.message != r.nextRecv || (s.op == wire.OpEager && s.offset != r.placed) ||
		(s.op == wire.OpNotify && r.placed != 0):
		f.refuse(statusInvalid) // wrong numbers
		return false
	}
	r.placed += s.len
	if s.flags&wire.FlagLast == 0 {
		return true
	}
	a := f.c.act(ActDeliver)
	a.Flow, a.Len = f.number, r.placed
	if s.op == wire.OpNotify {
		a.Len = s.offset
	}
	a.Header = wire.Header{Op: s.op, Flags: s.flags, Message: s.message, Imm: s.imm}
	r.placed = 0
	r.nextRecv++
	return true
}

// refuse fails the receiving half of the flow at the next chunk.
func (f *flow) refuse(status uint8) {
	f.recv.faulty, f.recv.fault, f.recv.ackNow, f.recv.faultDue = true, status, true, true
	f.raiseFault()
}

// raiseFault reports the fault to the owner once the peer has the responses to all fetches before it: the
// owner closes the flow.
func (f *flow) raiseFault() {
	if f.recv.faultDue && f.answers.done == f.answers.taken {
		f.recv.faultDue = false
		a := f.c.act(ActFault)
		a.Flow, a.Status = f.number, f.recv.fault
	}
}

// onSolicit responds to a Solicit at once, or once the owner has responded to ActWant.
func (f *flow) onSolicit(r *wire.Record) {
	f.recv.nonceDue, f.recv.dueNonce = true, r.Nonce
	f.c.control.lostAckHints++
	f.recv.ackNow = !f.c.requestGrant(f, r.Want) || f.recv.ackNow
}

// onReceives advertises posted receives to the peer, at once if it had none.
func (f *flow) onReceives(n int) {
	r := &f.recv
	none := r.reported == r.nextRecv
	r.posted += uint32(n)
	if none || r.nonceDue {
		r.ackNow = true
		return
	}
	f.oweAck()
}

// flushAcks sends the owed acknowledgements of all flows, and requests receives.
func (c *Conn) flushAcks() {
	c.control.requestDue = false
	for _, n := range c.owing {
		f := c.flows[n]
		f.inOwing = false
		f.recv.flushAck()
		f.touch()
	}
	c.owing = c.owing[:0]
	c.credits.reportDue = c.credits.reportDue || c.credits.arrived != c.credits.reported
}

// flushAck sends a deferred acknowledgement.
func (r *receiver) flushAck() {
	if r.owed > 0 || r.reported != r.posted {
		r.ackNow = true
	}
	r.ackAt = never
}

// ackIfDue sends the acknowledgement if it is due, and the fault if one exists.
func (f *flow) ackIfDue() {
	r, c := &f.recv, f.c
	if !r.ackNow || r.acksDeferred(c.now) {
		return
	}
	route := c.answerRoute()
	f.fillAck(c.sendRecord(route, wire.Record{Type: wire.Ack, Flow: f.number}))
	if r.faulty {
		c.sendRecord(route, wire.Record{Type: wire.Fault, Flow: f.number, Status: r.fault, CSN: uint32(r.next)})
	}
	c.stats.Acks++
	r.ackNow, r.dup, r.echoing, r.nonceDue = false, false, false, false
	r.owed, r.owedBytes, r.ackAt = 0, 0, never
	r.reported = r.posted
}

// answerRoute returns the route of acknowledgements and credit. It changes while the peer does not appear to
// receive them.
func (c *Conn) answerRoute() Route {
	route := &c.control.ackRoute
	if c.control.lostAckHints >= 2 {
		*route = c.nextRoute()
	}
	if *route >= RoutePath && !c.paths[*route-RoutePath].carries() {
		*route = c.control.route
	}
	return *route
}

func (f *flow) fillAck(a *wire.Record) {
	r := &f.recv
	a.Cum, a.Window, a.RecvLimit = uint32(r.next), uint16(f.c.control.credit), r.posted
	if r.dup {
		a.Flags |= wire.AckDup
	}
	if r.shared {
		a.Flags |= wire.AckShared
	}
	if r.echoing {
		a.Flags |= wire.AckEcho
		a.EchoCSN, a.EchoXmit = r.echoCSN, r.echoXmit
		a.RxDelay = uint32(min(f.c.now-r.echoAt, 1<<32-1))
	}
	if r.nonceDue {
		a.Flags |= wire.AckNonce
		a.Nonce = r.dueNonce
	}
	if r.faulty {
		return // later chunks will never be in order
	}
	for csn := r.next + 1; csn < r.highest; csn++ {
		if have, slot := r.at(csn); *have && slot.status == statusSuccess {
			bit := csn - r.next - 1
			a.Bitmap[bit/64] |= 1 << (bit % 64)
			a.Words = uint8(bit/64 + 1)
		}
	}
}
