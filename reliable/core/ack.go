package core

import "ibverbx/reliable/wire"

// onRecord takes a record of a control packet. The peer may send anything: what cannot be is
// counted and changes nothing.
func (c *Conn) onRecord(ev *Event) {
	r := &ev.Record
	switch r.Type {
	case wire.Ack, wire.Solicit, wire.Fault:
		f := c.flow(r.Flow)
		if f == nil {
			c.stats.BadRecords++
			return
		}
		c.touch(f)
		c.onFlowRecord(f, r, ev.Route)
	case wire.Offer:
		c.onOffer(r)
	case wire.Ping:
		c.onPing(r, ev.Route)
	case wire.Pong:
		c.onPong(r, ev.Route)
	case wire.CreditRequest:
		c.onCreditRequest(r)
	case wire.Credit:
		c.onCredit(r)
	default:
		c.stats.BadRecords++
	}
}

// onFlowRecord takes a record about a flow.
func (c *Conn) onFlowRecord(f *flow, r *wire.Record, route Route) {
	switch r.Type {
	case wire.Ack:
		if !f.failed {
			c.onAck(f, r, route)
		}
	case wire.Solicit:
		c.onSolicit(f, r)
	default:
		c.onFault(f, r)
	}
}

// onAck takes an acknowledgement. One that is older than what is known already says nothing
// new, and its window may be outdated; one for what was never sent is not true.
func (c *Conn) onAck(f *flow, r *wire.Record, route Route) {
	d := int64(int16(r.Cum - uint16(f.una)))
	if d < 0 {
		return
	}
	cum := f.una + uint64(d)
	if cum > f.nxt || !f.bitmapFits(r, cum) {
		c.stats.BadRecords++
		return
	}
	f.held = false
	if route < RoutePath {
		c.route = route
	}
	if c.window = int(r.Window); c.window == 0 {
		c.window = 1
	}
	if int32(r.RecvLimit-f.recvLimit) > 0 {
		f.recvLimit = r.RecvLimit
		f.recvProbes, f.noRecv = 0, false
		f.progressAt = c.now
	}
	c.noteDup(r)
	bytes, before := c.flyingBytes, f.una
	sample := c.onEcho(f, r)
	for csn := f.una; csn < cum; csn++ {
		c.acked(f, csn, false)
	}
	for w := range int(r.Words) {
		for b := r.Bitmap[w]; b != 0; b &= b - 1 {
			c.acked(f, cum+1+uint64(w*64+trailing(b)), false)
		}
	}
	f.una = max(f.una, cum)
	for f.una < f.nxt && f.chunk(f.una).state == chunkAcked {
		f.una++
	}
	if f.una > before || c.flyingBytes < bytes {
		c.cfg.Congestion.OnAck(c.now, bytes-c.flyingBytes, sample)
	}
	c.answered(f, r)
	c.findLost(f)
}

// bitmapFits reports whether an acknowledgement names only chunks that were sent.
func (s *sender) bitmapFits(r *wire.Record, cum uint64) bool {
	if r.Words == 0 {
		return true
	}
	top := uint64(r.Words)*64 - 1 - uint64(leading(r.Bitmap[r.Words-1]))
	return cum+1+top < s.nxt
}

// onEcho takes the news of the transmission that the acknowledgement repeats: it is exact, and
// so the only one to measure time by. It returns the round trip time, or 0.
func (c *Conn) onEcho(f *flow, r *wire.Record) int64 {
	if r.Flags&wire.AckEcho == 0 {
		return 0
	}
	d := int64(int16(r.EchoCSN - uint16(f.una)))
	if d < 0 || f.una+uint64(d) >= f.nxt {
		return 0
	}
	csn := f.una + uint64(d)
	ch := f.chunk(csn)
	if ch.state == chunkAcked || ch.xmits != r.EchoXmit+1 || !covers(r, r.EchoCSN) {
		return 0
	}
	sample := max(c.now-ch.sentAt-int64(r.RxDelay), 1)
	c.acked(f, csn, true)
	c.measure(&c.rtt, sample)
	if p := &c.paths[ch.path]; ch.epoch == p.epoch {
		c.measure(&p.rtt, sample)
		p.measured, p.measuredAt = true, c.now
	}
	return sample
}

// covers reports whether an acknowledgement says that a chunk has arrived.
func covers(r *wire.Record, csn uint16) bool {
	d := int(int16(csn - r.Cum))
	if d < 0 {
		return true
	}
	d--
	return d >= 0 && d < 64*int(r.Words) && r.Bitmap[d/64]>>(d%64)&1 != 0
}

func (c *Conn) measure(r *rtt, sample int64) {
	if c.cfg.FixedRTT == 0 {
		r.add(sample)
	}
}

// acked notes that a chunk has arrived; exact says that its last transmission has.
func (c *Conn) acked(f *flow, csn uint64, exact bool) {
	ch := f.chunk(csn)
	if csn < f.una || ch.state == chunkAcked {
		return
	}
	p := &c.paths[ch.path]
	switch ch.state {
	case chunkFlying:
		c.land(p, ch)
	case chunkLost:
		c.unlose(f, csn)
	case chunkAcked:
	}
	ch.state = chunkAcked
	f.probes, f.probeAt, f.progressAt, c.ghosts = 0, never, c.now, 0
	c.arrivedAt = c.now
	if exact || ch.xmits == 1 {
		f.rackAt = max(f.rackAt, ch.sentAt)
		c.rackAt = max(c.rackAt, ch.sentAt)
		if last := &f.acked[ch.path]; ch.epoch == p.epoch && p.carries() && p.next-(ch.pseq+1) < p.next-*last {
			*last = ch.pseq + 1
		}
	} else if ch.moved {
		return // nobody knows which path it came on
	}
	if ch.epoch == p.epoch && p.carries() {
		p.loss -= p.loss >> 4
		p.attempts, p.silent = 0, false
		c.setState(int(ch.path), PathUp)
	}
}

// land takes a chunk out of what is in flight.
func (c *Conn) land(p *path, ch *chunk) {
	c.flying--
	c.flyingBytes -= int(ch.len)
	if ch.epoch == p.epoch {
		p.inflight -= int(ch.len)
		p.flying--
	}
}

// unlose takes a chunk off the list of what is to be sent again.
func (c *Conn) unlose(f *flow, csn uint64) {
	f.chunk(csn).state = chunkFlying
	f.lostCount--
	c.lost--
}

// answered takes the answer to a Solicit: what was sent before it and is not acknowledged now
// was not there yet.
func (c *Conn) answered(f *flow, r *wire.Record) {
	if r.Flags&wire.AckNonce == 0 {
		return
	}
	if f.noRecv && f.una == f.nxt {
		f.progressAt = c.now // the peer lives, late or not; it only has no receive
	}
	if r.Nonce != f.nonce || f.nonceAt == never {
		return
	}
	f.rackAt = max(f.rackAt, f.nonceAt)
	c.rackAt = max(c.rackAt, f.nonceAt)
	f.nonceAt, c.ghosts = never, 0
	if f.una < f.nxt {
		f.probes, f.probeAt = 0, never
	}
}

// noteDup widens what counts as reordering when something was repeated in vain, and narrows
// it again after a while.
func (c *Conn) noteDup(r *wire.Record) {
	if r.Flags&wire.AckDup != 0 {
		c.calm = 0
		if c.reorderShift < 4 {
			c.reorderShift++
		}
		return
	}
	if c.calm++; c.calm >= 64 {
		c.calm = 0
		if c.reorderShift > 0 {
			c.reorderShift--
		}
	}
}

// onFault ends a flow for something that the peer cannot take. Everything before it has
// arrived.
func (c *Conn) onFault(f *flow, r *wire.Record) {
	d := int64(int16(r.CSN - uint16(f.una)))
	waits := d == 0 && f.una == f.nxt && f.cut < f.posted // for a receive, and the peer has failed
	if f.failed || d < 0 || (f.una+uint64(d) >= f.nxt && !waits) {
		c.stats.BadRecords++
		return
	}
	for n := f.una + uint64(d); f.una < n; f.una++ {
		c.acked(f, f.una, false)
	}
	c.fail(f, r.Status)
}
