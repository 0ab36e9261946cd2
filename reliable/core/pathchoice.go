package core

const (
	// smallPart is the fraction of ChunkBytes up to which a chunk is small. Small chunks stay on one
	// path, because spreading them gains nothing.
	smallPart = 4
	// smallSum is the fraction of ChunkBytes after which small chunks move to another path.
	smallSum = 2
)

// choose returns the path for n bytes, or nil if all paths are full. It is the better
// of two random paths, by expected delay. If no path is up, it is a suspect one.
func (c *Conn) choose(n uint32) *path {
	small := n <= c.cfg.ChunkBytes/smallPart && c.lastBytes+n <= c.cfg.ChunkBytes/smallSum
	if c.last >= 0 && (small || c.lastBytes+n <= uint32(c.cfg.Carrier.Burst)) {
		if p := &c.paths[c.last]; p.state == PathUp && p.hasRoom() {
			c.lastBytes += n
			return p
		}
	}
	p := c.better()
	if p == nil {
		p = c.anyPath()
	}
	if p != nil {
		c.last, c.lastBytes = int32(p.index), n
	}
	return p
}

// better returns the better of two random paths that are up, or nil if both are full.
func (c *Conn) better() *path {
	k := len(c.up)
	if k == 0 {
		return nil
	}
	a, b := 0, k-1
	if k > 2 {
		r := c.rng.Next()
		a = int(uint32(r) % uint32(k))
		b = (a + 1 + int(uint32(r>>32)%uint32(k-1))) % k
	}
	p, q := &c.paths[c.up[a]], &c.paths[c.up[b]]
	if !p.hasRoom() || (q.hasRoom() && q.beats(p)) {
		p = q
	}
	if !p.hasRoom() {
		return nil
	}
	return p
}

// beats reports whether p is preferred to q. Of two equal paths, the one that has carried less wins.
func (p *path) beats(q *path) bool {
	dp, dq := p.expectedDelay(), q.expectedDelay()
	return dp < dq || (dp == dq && int32(p.next-q.next) < 0)
}

// expectedDelay is the expected delay of the path in nanoseconds. It uses the latest sample, because queues
// change faster than a mean follows. A path that was never measured counts as fast, so that it is
// tried. An old sample counts at most as much as the connection's mean. Losses count as delay.
func (p *path) expectedDelay() int64 {
	c := p.c
	d := int64(float64(p.inflight) * 1e9 / c.cfg.Rate)
	if !p.measured {
		return d
	}
	base := p.rtt.last
	if c.now-p.measuredAt > c.cfg.MaxAge {
		base = min(base, c.rtt.mean)
	}
	return d + base + base*int64(p.loss)/64
}

// anyPath returns a path that is not full, or nil: the first path that is up, from a random one
// on, or if none is up, the first suspect one.
func (c *Conn) anyPath() *path {
	if k := len(c.up); k > 0 {
		start := int(c.rng.Next() % uint64(k))
		for j := range k {
			if p := &c.paths[c.up[(start+j)%k]]; p.hasRoom() {
				return p
			}
		}
		return nil
	}
	for i := range c.paths {
		if p := &c.paths[i]; p.state == PathSuspect && p.hasRoom() {
			return p
		}
	}
	return nil
}
