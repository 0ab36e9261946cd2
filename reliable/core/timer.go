package core

import "ibverbx/reliable/wire"

// Deadline is the time at which EvTick is due, or a time that does not come.
func (c *Conn) Deadline() int64 {
	d := min(c.reorderAt, c.probeAt, c.ackAt, c.askAt)
	if c.busy && !c.failed {
		d = min(d, c.progressAt+c.cfg.GiveUp)
	}
	if c.impatient() {
		d = min(d, c.noRecvAt+c.cfg.RecvPatience)
	}
	for i := range c.paths {
		d = min(d, c.paths[i].timerAt)
	}
	return d
}

// impatient reports whether the wait for a receive has an end.
func (c *Conn) impatient() bool { return c.noRecv && !c.failed && c.cfg.RecvPatience > 0 }

// Never is what Deadline returns when nothing is due.
const Never int64 = never

// tick does what is due.
func (c *Conn) tick() {
	if c.now >= c.ackAt {
		c.flushAck()
	}
	if c.failed {
		return
	}
	if c.busy && c.now >= c.progressAt+c.cfg.GiveUp {
		c.fail(statusRetryExc)
		return
	}
	if c.impatient() && c.now >= c.noRecvAt+c.cfg.RecvPatience {
		c.fail(statusRNRExc)
		return
	}
	if c.now >= c.reorderAt {
		c.loseLate()
	}
	if c.now >= c.probeAt {
		c.probe()
	}
	for i := range c.paths {
		if c.now >= c.paths[i].timerAt {
			c.pathTimer(i)
		}
	}
}

// arm sets the timers of the sender.
func (c *Conn) arm() {
	waits := c.una < c.nxt
	if !c.noRecv {
		c.noRecvAt = c.now
	}
	busy := waits || (c.cut < c.posted && c.sides == 0)
	if busy && !c.busy {
		c.progressAt = c.now
	}
	c.busy = busy
	switch {
	case waits:
		if c.probeAt == never {
			c.probeAt = c.now + c.probeWait(c.probes)
		}
	case c.noRecv:
		if c.probeAt == never {
			if c.recvProbes == 0 {
				c.recvProbes = 1
				c.solicit(c.route) // the first one at once: perhaps it is known there already
			}
			c.probeAt = c.now + c.probeWait(c.recvProbes)
		}
	default:
		c.probeAt, c.probes, c.recvProbes = never, 0, 0
	}
}

// probeWait is how long silence may last before probe number n.
func (c *Conn) probeWait(n uint8) int64 {
	base := c.rtt.bound() + max(c.rtt.srtt, c.cfg.MinProbe)
	return min(base<<min(n, 20), max(c.cfg.MaxProbe, base))
}

// probe breaks the silence: it asks for an acknowledgement, each time on another way, and
// from the second time on sends the oldest chunk again, on its path, unless the peer may have no
// receive for it: one that stalls has all those before still to take.
func (c *Conn) probe() {
	c.probeAt = never
	if c.una == c.nxt {
		if c.noRecv {
			c.recvProbes = min(c.recvProbes+1, 30)
			c.solicit(c.nextRoute())
		}
		return
	}
	c.probes = min(c.probes+1, 30)
	if c.probes == 1 {
		c.solicit(c.route)
		return
	}
	c.solicit(c.nextRoute())
	if c.flying+c.ghosts >= c.window+c.window/8 { // peers have some receives more than they tell
		return
	}
	for csn := c.una; csn < c.nxt; csn++ {
		ch := c.chunk(csn)
		if ch.state == chunkAcked {
			continue
		}
		if ch.state == chunkFlying {
			c.stats.TimeoutLoss++
			c.ghosts++
			c.lose(csn, true)
			p := &c.paths[ch.path]
			p.silent, p.silentAt = true, ch.sentAt
			c.loseBefore(int(ch.path), p) // makes room for it
		}
		return
	}
}

// solicit asks the peer for an acknowledgement.
func (c *Conn) solicit(route Route) {
	c.stats.Probes++
	c.nonce++
	c.nonceAt = c.now
	a := c.act(ActControl)
	a.Route = route
	a.Record = wire.Record{Type: wire.Solicit, Nonce: c.nonce}
}

// nextRoute goes around the control QPs and the paths that are up: whatever is dead, one of
// them is not.
func (c *Conn) nextRoute() Route {
	n := c.requests
	c.requests++
	if n%3 < 2 {
		return Route(n % 3)
	}
	if k := uint32(len(c.up)); k > 0 {
		return RoutePath + Route(c.up[n/3%k])
	}
	return c.route
}
