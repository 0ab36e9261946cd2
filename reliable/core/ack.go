package core

import (
	"math/bits"

	"ibverbx/reliable/wire"
)

// onRecord processes a record of a control packet. The peer is not trusted: an impossible
// record is counted and ignored.
func (c *Conn) onRecord(ev *Event) {
	r := &ev.Record
	bad := c.Over()
	switch r.Type {
	case wire.Ack, wire.Solicit, wire.Fault:
		f := c.flow(r.Flow)
		if bad = f == nil; !bad {
			f.touch()
			f.onRecord(r, ev.Route)
		}
	case wire.Offer, wire.Ping, wire.Pong:
		bad = bad || int(r.Path) >= len(c.paths) || !c.paths[r.Path].onRecord(r, ev.Route)
	case wire.CreditRequest:
		if bad = bad || !c.cfg.Grants; !bad {
			c.credits.onRecord(r)
		}
	case wire.Credit:
		if bad = bad || !c.cfg.PeerGrants; !bad {
			c.credits.onRecord(r)
		}
	default:
		bad = true
	}
	if bad {
		c.stats.BadRecords++
	}
}

// onRecord processes a record about the flow.
func (f *flow) onRecord(r *wire.Record, route Route) {
	switch r.Type {
	case wire.Ack:
		if !f.failed {
			f.onAck(r, route)
		}
	case wire.Solicit:
		f.onSolicit(r)
	default:
		f.onFault(r)
	}
}

// onAck processes an acknowledgement. One older than the last is ignored: its window may be outdated.
// One for unsent chunks is bad.
func (f *flow) onAck(r *wire.Record, route Route) {
	s, c := &f.send, f.c
	d := int64(int32(r.Cum - uint32(s.una)))
	if d < 0 {
		return
	}
	cum := s.una + uint64(d)
	if cum > s.nxt || !s.bitmapFits(r, cum) {
		c.stats.BadRecords++
		return
	}
	f.suspended = false
	if route < RoutePath {
		c.control.route = route
	}
	c.window = max(int(r.Window), 1)
	s.onReceives(r, c.now)
	c.rack.noteDup(r.Flags&wire.AckDup != 0)
	f.onEcho(r)
	f.ackedBelow(cum)
	for w := range int(r.Words) {
		for b := r.Bitmap[w]; b != 0; b &= b - 1 {
			f.acked(cum+1+uint64(w*64+bits.TrailingZeros64(b)), false)
		}
	}
	f.ackedBelow(cum)
	f.onSolicitReply(r)
	f.findLost()
}

// ackedBelow marks all chunks below cum as arrived.
func (f *flow) ackedBelow(cum uint64) {
	s := &f.send
	for ; s.una < cum; s.una++ {
		f.acked(s.una, false)
	}
	for s.una < s.nxt && s.chunk(s.una).state == chunkAcked {
		s.una++
	}
}

// bitmapFits reports whether an acknowledgement covers only sent chunks.
func (s *sender) bitmapFits(r *wire.Record, cum uint64) bool {
	if r.Words == 0 {
		return true
	}
	top := uint64(r.Words)*64 - 1 - uint64(bits.LeadingZeros64(r.Bitmap[r.Words-1]))
	return cum+1+top < s.nxt
}

// onEcho processes the transmission that the acknowledgement echoes. The echo identifies one exact
// transmission, so only it measures a round trip time.
func (f *flow) onEcho(r *wire.Record) {
	s, c := &f.send, f.c
	if r.Flags&wire.AckEcho == 0 {
		return
	}
	d := int64(int16(r.EchoCSN - uint16(s.una)))
	if d < 0 || s.una+uint64(d) >= s.nxt {
		return
	}
	csn := s.una + uint64(d)
	ch := s.chunk(csn)
	if ch.state == chunkAcked || ch.xmits != r.EchoXmit+1 || !covers(r, r.EchoCSN) {
		return
	}
	answer := max(c.now-ch.sentAt, 1)
	sample := max(answer-c.age-int64(r.RxDelay), 1)
	f.acked(csn, true)
	c.measure(&c.rtt, sample, answer)
	c.congestion.onEcho(ch.sentAt, sample)
	if p := &c.paths[ch.path]; ch.epoch == p.epoch {
		c.measure(&p.rtt, sample, answer)
		p.measured, p.measuredAt = true, c.now
	}
}

// covers reports whether an acknowledgement reports the arrival of a chunk.
func covers(r *wire.Record, csn uint16) bool {
	d := int(int16(csn - uint16(r.Cum)))
	if d < 0 {
		return true
	}
	d--
	return d >= 0 && d < 64*int(r.Words) && r.Bitmap[d/64]>>(d%64)&1 != 0
}

// acked marks a chunk as arrived. With exact, its last transmission has arrived.
func (f *flow) acked(csn uint64, exact bool) {
	s, c := &f.send, f.c
	ch := s.chunk(csn)
	if csn < s.una || ch.state == chunkAcked {
		return
	}
	p := &c.paths[ch.path]
	if ch.state == chunkFlying {
		p.endFlight(ch)
	} else {
		f.unlose(ch)
	}
	ch.state = chunkAcked
	s.probes, s.probeAt, s.progressAt, c.timedOut = 0, never, c.now, 0
	c.arrivedAt = c.now
	if exact || ch.xmits == 1 {
		f.advanceRack(ch.sentAt)
		if last := &s.acked[ch.path]; ch.epoch == p.epoch && p.carries() && p.next-(ch.pseq+1) < p.next-*last {
			*last = ch.pseq + 1
		}
	} else if ch.moved {
		return // the path of its arrival is unknown
	}
	if ch.epoch == p.epoch && p.carries() {
		p.loss -= p.loss >> 4
		p.attempts, p.silent, p.timerAt = 0, false, never
		p.setState(PathUp)
	}
}

// unlose removes a chunk from the list of chunks to be retransmitted.
func (f *flow) unlose(ch *chunk) {
	ch.state = chunkFlying
	f.send.lostCount--
	f.c.lost--
}

// onSolicitReply processes the response to a Solicit. A chunk that was sent before the Solicit and is not
// acknowledged now had not arrived.
func (f *flow) onSolicitReply(r *wire.Record) {
	s, c := &f.send, f.c
	if r.Flags&wire.AckNonce == 0 {
		return
	}
	if s.noRecv && s.una == s.nxt {
		s.progressAt = c.now // the peer is alive but lacks a receive
	}
	if s.nonceAt == never || int32(r.Nonce-s.probed) < 0 || int32(r.Nonce-s.nonce) > 0 {
		return
	}
	f.advanceRack(s.nonceAt)
	s.nonceAt, c.timedOut = never, 0
	if s.una < s.nxt {
		s.probes, s.probeAt = 0, never
	}
}

// onFault processes the refusal of a chunk by the peer. Everything before that chunk has arrived.
// Its message fails after all earlier ones have completed: a READ may still wait for its response.
func (f *flow) onFault(r *wire.Record) {
	s := &f.send
	d := int64(int32(r.CSN - uint32(s.una)))
	// The peer has failed while the flow waits for a receive or a response.
	waits := d == 0 && s.una == s.nxt && (s.cut < s.posted || f.fetches.waiting())
	if f.failed || d < 0 || (s.una+uint64(d) >= s.nxt && !waits) {
		f.c.stats.BadRecords++
		return
	}
	csn := s.una + uint64(d)
	f.ackedBelow(csn)
	if i := s.chunk(csn).msg; !waits && i&answerBit == 0 {
		s.message(i).Status = r.Status
		return
	}
	f.fail(r.Status)
}
