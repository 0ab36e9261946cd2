package core

import "math/bits"

func trailing(w uint64) int { return bits.TrailingZeros64(w) }
func leading(w uint64) int  { return bits.LeadingZeros64(w) }

// findLost finds what is lost after news of the peer, first exactly, then by time.
func (c *Conn) findLost() {
	for i := range c.paths {
		if p := &c.paths[i]; p.low != p.next {
			c.loseBefore(i, p)
		}
	}
	c.loseLate()
}

// loseBefore finds what is lost on one path: whatever was sent before something that has
// arrived and has not arrived itself. A path does not reorder, and an acknowledgement that
// told of the later one would have told of the earlier one too.
func (c *Conn) loseBefore(i int, p *path) {
	for int32(p.acked-p.low) > 0 {
		if c.outstanding(i, p, p.low) {
			c.stats.SamePathLoss++
			c.lose(p.entry(p.low).csn, false)
		}
		p.low++
	}
	for p.low != p.next && !c.outstanding(i, p, p.low) {
		p.low++
	}
}

// loseLate finds what is lost across paths (RACK, RFC 8985, with a clock per path): what was
// sent well before something that has arrived, and has had the time that its path takes.
func (c *Conn) loseLate() {
	c.reorderAt = never
	reorder := max(c.rtt.srtt/4, c.cfg.MinReorder) << c.reorderShift
	for i := range c.paths {
		p := &c.paths[i]
		for p.low != p.next {
			e := p.entry(p.low)
			if !c.outstanding(i, p, p.low) {
				p.low++
				continue
			}
			if e.sentAt+reorder > c.rackAt {
				break
			}
			if due := e.sentAt + c.patience(p) + reorder; c.now < due {
				c.reorderAt = min(c.reorderAt, due)
				break
			}
			c.stats.ReorderLoss++
			again := p.state == PathSuspect && e.sentAt >= p.suspectAt
			c.lose(e.csn, false)
			if again {
				c.down(i)
				break
			}
			if p.state == PathUp {
				p.suspectAt = c.now
				c.setState(i, PathSuspect)
			}
			p.low++
		}
	}
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

// lose puts a chunk that is in flight on the list of what is to be sent again.
func (c *Conn) lose(csn uint64, timeout bool) {
	ch := c.chunk(csn)
	p := &c.paths[ch.path]
	c.land(p, ch)
	ch.state = chunkLost
	c.lostCount++
	p.loss += (255 - p.loss) >> 4
	c.cfg.Congestion.OnLoss(c.now, int(ch.len), timeout)
}
