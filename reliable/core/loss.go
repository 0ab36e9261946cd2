package core

import "math/bits"

func trailing(w uint64) int { return bits.TrailingZeros64(w) }
func leading(w uint64) int  { return bits.LeadingZeros64(w) }

// findLost finds what is lost after news of a flow, first exactly, then by time.
func (c *Conn) findLost(f *flow) {
	for i := range c.paths {
		if p := &c.paths[i]; p.low != p.next {
			c.loseBefore(f, i, p)
		}
	}
	c.loseLate()
}

// loseBefore finds what a flow has lost on one path: whatever was sent before something of it
// that has arrived and has not arrived itself. A path does not reorder, and an acknowledgement
// that told of the later one would have told of the earlier one too.
func (c *Conn) loseBefore(f *flow, i int, p *path) {
	if n := f.acked[i] - p.low; n <= p.next-p.low {
		for k := p.low; k != f.acked[i]; k++ {
			if e := p.entry(k); e.flow == f.number && c.outstanding(i, p, k) {
				c.stats.SamePathLoss++
				c.lose(e, false)
			}
		}
	}
	c.sweep(i, p)
}

// sweep forgets the oldest transmissions of a path that are not in flight.
func (c *Conn) sweep(i int, p *path) {
	for p.low != p.next && !c.outstanding(i, p, p.low) {
		p.low++
	}
}

// loseLate finds what is lost across paths (RACK, RFC 8985, with a clock per path): what was
// sent well before something of its flow that has arrived, and has had the time that its path
// takes.
func (c *Conn) loseLate() {
	c.reorderAt = never
	reorder := max(c.rtt.srtt/4, c.cfg.MinReorder) << c.reorderShift
	for i := range c.paths {
		p := &c.paths[i]
		for k := p.low; k != p.next; k++ {
			e := p.entry(k)
			if e.sentAt+reorder > c.rackAt {
				break
			}
			if e.sentAt+reorder > c.flows[e.flow].rackAt || !c.outstanding(i, p, k) {
				continue
			}
			if due := e.sentAt + c.patience(p) + reorder; c.now < due {
				c.reorderAt = min(c.reorderAt, due)
				break
			}
			c.stats.ReorderLoss++
			c.lose(e, false)
			if c.blame(i, p, e.sentAt) {
				break
			}
		}
		c.sweep(i, p)
		// What silence has ended counts against the path, too, once the peer has shown
		// that it was not the peer's flow that was silent.
		if p.silent && p.carries() && p.silentAt+reorder <= c.flows[p.silentFlow].rackAt && c.now >= p.silentAt+c.patience(p)+reorder {
			p.silent = false
			c.blame(i, p, p.silentAt)
		}
	}
}

// blame counts a transmission that was sent at a time and lost while others arrived against
// its path: the first makes it suspect; one that was sent since then takes it down, and blame
// reports that.
func (c *Conn) blame(i int, p *path, sentAt int64) bool {
	switch {
	case p.state == PathUp:
		p.suspectAt = c.now
		c.setState(i, PathSuspect)
	case p.state == PathSuspect && sentAt >= p.suspectAt:
		c.down(i)
		return true
	}
	return false
}

// patience is how long a transmission on p may take.
func (c *Conn) patience(p *path) int64 {
	if c.cfg.FixedRTT != 0 {
		return c.cfg.FixedRTT
	}
	if p.measured {
		return p.rtt.bound()
	}
	return c.rtt.bound()
}

// lose notes that a transmission that is in flight is lost.
func (c *Conn) lose(e *entry, timeout bool) {
	f := c.flows[e.flow]
	ch := f.chunk(e.csn)
	p := &c.paths[ch.path]
	c.land(p, ch)
	c.noteLost(f, ch)
	p.loss += (255 - p.loss) >> 4
	c.cfg.Congestion.OnLoss(c.now, int(ch.len), timeout)
}

// noteLost puts a chunk on the list of what is to be sent again.
func (c *Conn) noteLost(f *flow, ch *chunk) {
	ch.state = chunkLost
	c.lost++
	f.lostCount++
	if !f.losing {
		f.losing = true
		c.losers = append(c.losers, f.number)
	}
	c.touch(f)
}
