package core

// Small chunks, of at most ChunkBytes/small, stay on the last path up to a sum of
// ChunkBytes/smallSum: they would not gain by being spread.
const (
	small    = 4
	smallSum = 2
)

// choose returns the path for n bytes that may go anywhere, or -1 if none has room: the
// better of two at random, by the delay that is to be expected. If none is up, one that is
// suspect has to do.
func (c *Conn) choose(n uint32) int {
	if c.last >= 0 && n <= c.cfg.ChunkBytes/small && c.lastBytes+n <= c.cfg.ChunkBytes/smallSum {
		if p := &c.paths[c.last]; p.state == PathUp && c.room(p) {
			c.lastBytes += n
			return int(c.last)
		}
	}
	i := c.better()
	if i < 0 {
		i = c.anyPath()
	}
	if i >= 0 {
		c.last, c.lastBytes = int32(i), n
	}
	return i
}

// better is power of two choices among the paths that are up.
func (c *Conn) better() int {
	k := len(c.up)
	if k == 0 {
		return -1
	}
	a, b := 0, k-1
	if k > 2 {
		r := c.random()
		a = int(uint32(r) % uint32(k))
		b = (a + 1 + int(uint32(r>>32)%uint32(k-1))) % k
	}
	i, j := int(c.up[a]), int(c.up[b])
	p, q := &c.paths[i], &c.paths[j]
	if !c.room(p) || (c.room(q) && c.preferred(q, p)) {
		i, p = j, q
	}
	if !c.room(p) {
		return -1
	}
	return i
}

// preferred reports whether q is to be taken rather than p. Of equals it is the one that has
// carried less.
func (c *Conn) preferred(q, p *path) bool {
	dq, dp := c.expected(q), c.expected(p)
	return dq < dp || (dq == dp && int32(q.next-p.next) < 0)
}

// expected is the delay that a path is expected to have, in nanoseconds: the latest one, because
// queues come and go faster than a mean of many follows. A path that was never measured counts
// as fast, so that it is tried; a measurement that is old counts for no more than that of the
// whole connection; losses count as delay.
func (c *Conn) expected(p *path) int64 {
	d := int64(float64(p.inflight) * 1e9 / c.cfg.Rate)
	if !p.measured {
		return d
	}
	base := p.rtt.last
	if c.now-p.measuredAt > c.cfg.MaxAge {
		base = min(base, c.rtt.srtt)
	}
	return d + base + base*int64(p.loss)/64
}

// anyPath returns the first path with room from a random one on: up ones first, then suspect
// ones.
func (c *Conn) anyPath() int {
	if k := len(c.up); k > 0 {
		start := int(c.random() % uint64(k))
		for j := range k {
			i := int(c.up[(start+j)%k])
			if c.room(&c.paths[i]) {
				return i
			}
		}
		return -1
	}
	for i := range c.paths {
		if c.paths[i].state == PathSuspect && c.room(&c.paths[i]) {
			return i
		}
	}
	return -1
}
