package core

// rack is the state of loss detection by time, across paths (RACK, RFC 8985).
type rack struct {
	at        int64 // the latest sender.rackAt of all flows
	reorderAt int64 // when the next chunk is considered lost, or never
	shift     uint8 // the number of times that the reordering allowance is doubled, at most 4
	calm      uint8 // counts acknowledgements since shift last changed
}

// noteDup processes an acknowledgement. A duplicate was retransmitted unnecessarily, so it widens the
// reordering allowance. The allowance narrows again after 64 acknowledgements without one.
func (r *rack) noteDup(dup bool) {
	if dup {
		r.calm = 0
		r.shift = min(r.shift+1, 4)
		return
	}
	if r.calm++; r.calm >= 64 {
		r.calm = 0
		if r.shift > 0 {
			r.shift--
		}
	}
}

// advanceRack records the arrival of a transmission sent at sentAt.
func (f *flow) advanceRack(sentAt int64) {
	f.send.rackAt = max(f.send.rackAt, sentAt)
	f.c.rack.at = max(f.c.rack.at, sentAt)
}

// findLost finds lost chunks after an acknowledgement of the flow, first exactly, then by time.
func (f *flow) findLost() {
	for i := range f.c.paths {
		if p := &f.c.paths[i]; p.low != p.next {
			f.loseBefore(p)
		}
	}
	f.c.loseLate()
}

// lossDistance is the distance, in transmissions, to a later arrival that proves a loss on a path that reorders.
const lossDistance = 3

// loseBefore finds the chunks that the flow has lost on one path: chunks sent before one of its chunks
// that has arrived. A path does not reorder, and an acknowledgement that covers the later chunk would
// cover the earlier one too. With Carrier.Unordered the two must be lossDistance apart.
func (f *flow) loseBefore(p *path) {
	p.sweep() // without a loss, no chunk before the arrival remains
	last := f.send.acked[p.index]
	if last == p.low || last-p.low > p.next-p.low {
		return
	}
	if f.c.cfg.Carrier.Unordered {
		last -= min(lossDistance, last-p.low)
	}
	for k := p.low; k != last; k++ {
		if e := p.entry(k); e.flow == f.number && p.outstanding(k) {
			f.c.stats.SamePathLoss++
			f.c.lose(e, false)
		}
	}
	p.sweep()
}

// sweep removes the oldest transmissions that are not in flight.
func (p *path) sweep() {
	for p.low != p.next && !p.outstanding(p.low) {
		p.low++
	}
}

// sweep removes transmissions that are not in flight on all paths, which frees ledger entries.
func (c *Conn) sweep() {
	for i := range c.paths {
		c.paths[i].sweep()
	}
}

// loseLate finds lost chunks across paths (RACK, with a clock per path). A chunk is lost if it was sent
// well before an arrival of its flow, and its path has had its usual time.
func (c *Conn) loseLate() {
	c.rack.reorderAt = never
	reorder := max(c.rtt.srtt/4, c.cfg.MinReorder) << c.rack.shift
	for i := range c.paths {
		p := &c.paths[i]
		for k := p.low; k != p.next; k++ {
			e := p.entry(k)
			if e.sentAt+reorder > c.rack.at {
				break
			}
			if e.sentAt+reorder > c.flows[e.flow].send.rackAt || !p.outstanding(k) {
				continue
			}
			if due := e.sentAt + p.lossTimeout() + reorder; c.now < due {
				c.rack.reorderAt = min(c.rack.reorderAt, due)
				break
			}
			c.stats.ReorderLoss++
			c.lose(e, false)
			p.sweep()
			if p.blame(e.sentAt) {
				break
			}
		}
		// A timeout counts against the path too, once a response has shown that the peer's flow was
		// not the cause.
		if p.silent && p.carries() && p.silentAt+reorder <= c.flows[p.silentFlow].send.rackAt && c.now >= p.silentAt+p.lossTimeout()+reorder {
			p.silent = false
			p.blame(p.silentAt)
		}
	}
}

// blame counts a loss against the path while other paths delivered. The first loss makes the path suspect. The loss
// of a later transmission takes it down, which blame reports. A suspect path of shared QPs is tested with pings,
// because other paths may retransmit its chunks.
func (p *path) blame(sentAt int64) bool {
	switch {
	case p.state == PathUp:
		p.suspectAt = p.c.now
		p.setState(PathSuspect)
		if p.c.cfg.Carrier.Shared {
			p.timerAt = p.c.now + p.c.probeWait(1)
		}
	case p.state == PathSuspect && sentAt >= p.suspectAt:
		p.down()
		return true
	}
	return false
}

// lossTimeout is the time within which a transmission on the path arrives, in nanoseconds.
func (p *path) lossTimeout() int64 {
	switch c := p.c; {
	case c.cfg.FixedRTT != 0:
		return c.cfg.FixedRTT
	case p.measured:
		return p.rtt.bound()
	default:
		return c.rtt.bound()
	}
}

// lose marks a transmission in flight as lost.
func (c *Conn) lose(e *entry, timeout bool) {
	f := c.flows[e.flow]
	ch := f.send.chunk(e.csn)
	p := &c.paths[ch.path]
	p.endFlight(ch)
	f.noteLost(ch)
	p.loss += (255 - p.loss) >> 4
	p.stats.Lost++
	c.congestion.round.losses++
	if timeout {
		c.congestion.onTimeout()
	}
}

// noteLost adds a chunk to the chunks to be retransmitted.
func (f *flow) noteLost(ch *chunk) {
	ch.state = chunkLost
	f.c.lost++
	f.send.lostCount++
	if !f.inLossy {
		f.inLossy = true
		f.c.lossy = append(f.c.lossy, f.number)
	}
	f.touch()
}
