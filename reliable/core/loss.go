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
			c.lose(e.csn, false)
			if c.blame(i, p, e.sentAt) {
				break
			}
			p.low++
		}
		// What silence has ended counts against the path, too, once the peer has shown
		// that it was not the peer that was silent.
		if p.silent && p.carries() && p.silentAt+reorder <= c.rackAt && c.now >= p.silentAt+c.patience(p)+reorder {
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
