package core

import "ibverbx/reliable/wire"

// Deadline is the time at which EvTick is due, or a time that does not come.
func (c *Conn) Deadline() int64 {
	d := min(c.reorderAt, c.askAt, c.nextFlowTimer())
	for i := range c.paths {
		d = min(d, c.paths[i].timerAt)
	}
	return d
}

// deadline is when something is due for a flow.
func (c *Conn) deadline(f *flow) int64 {
	d := min(f.probeAt, f.ackAt)
	if f.failed {
		return d
	}
	if f.busy {
		d = min(d, c.since(f)+f.giveUp)
	}
	if f.impatient() {
		d = min(d, f.noRecvAt+f.patience)
	}
	return d
}

// since is when a flow was last known to get on. One that has nothing under way waits for its
// turn as long as others get on, and for credit as long as the peer answers.
func (c *Conn) since(f *flow) int64 {
	if f.una == f.nxt {
		return max(f.progressAt, c.arrivedAt, c.grantedAt)
	}
	return f.progressAt
}

// impatient reports whether the wait for a receive has an end.
func (f *flow) impatient() bool { return f.noRecv && f.patience > 0 }

// Never is what Deadline returns when nothing is due.
const Never int64 = never

// tick does what is due.
func (c *Conn) tick() {
	for c.nextFlowTimer() <= c.now {
		f := c.flows[c.heap[0]]
		c.retime(f, never) // until the step ends
		c.touch(f)
		c.flowTimer(f)
	}
	if c.over() {
		return
	}
	if c.now >= c.reorderAt {
		c.loseLate()
	}
	for i := 0; i < len(c.touched); i++ {
		if f := c.flows[c.touched[i]]; !f.failed && c.now >= f.probeAt {
			c.probe(f)
		}
	}
	for i := range c.paths {
		if c.now >= c.paths[i].timerAt {
			c.pathTimer(i)
		}
	}
}

// flowTimer does what is due for a flow, but for probes: news may make them needless.
func (c *Conn) flowTimer(f *flow) {
	if c.now >= f.ackAt {
		f.flushAck()
	}
	switch {
	case f.failed:
	case f.busy && c.now >= c.since(f)+f.giveUp:
		c.fail(f, statusRetryExc)
	case f.impatient() && c.now >= f.noRecvAt+f.patience:
		c.fail(f, statusRNRExc)
	}
}

// arm sets the timers of a flow's sender.
func (c *Conn) arm(f *flow) {
	waits := f.una < f.nxt
	busy := waits || (f.cut < f.posted && f.sides == 0)
	if busy && !f.busy {
		f.progressAt = c.now
	}
	f.busy = busy
	switch {
	case waits:
		if f.probeAt == never {
			f.probeAt = c.now + c.probeWait(f.probes)
		}
	case f.noRecv:
		if f.probeAt == never {
			if f.recvProbes == 0 {
				f.recvProbes = 1
				c.solicit(f, c.route) // the first one at once: perhaps it is known there already
			}
			f.probeAt = c.now + c.probeWait(f.recvProbes)
		}
	default:
		f.probeAt, f.probes, f.recvProbes = never, 0, 0
	}
}

// probeWait is how long silence may last before probe number n. Some fit into every GiveUp: a
// peer that lives answers one of them.
func (c *Conn) probeWait(n uint8) int64 {
	base := c.rtt.bound() + max(c.rtt.srtt, c.cfg.MinProbe)
	return min(base<<min(n, 20), max(min(c.cfg.MaxProbe, c.hurry/4), base))
}

// probe breaks the silence: it asks for an acknowledgement, each time on another way, and
// from the second time on sends the oldest chunk again, on its path, unless the peer may have no
// receive for it: one that stalls has all those before still to take.
func (c *Conn) probe(f *flow) {
	f.probeAt = never
	if f.una == f.nxt {
		if f.noRecv {
			f.recvProbes = min(f.recvProbes+1, 30)
			c.solicit(f, c.nextRoute())
		}
		return
	}
	f.probes = min(f.probes+1, 30)
	if f.probes == 1 {
		c.solicit(f, c.route)
		return
	}
	asked := f.nonceAt
	c.solicit(f, c.nextRoute())
	if asked != never && c.rackAt >= asked {
		c.hold(f)
		return
	}
	if c.flying+c.ghosts >= c.window+c.window/8 { // peers have some receives more than they tell
		return
	}
	for csn := f.una; csn < f.nxt; csn++ {
		ch := f.chunk(csn)
		if ch.state == chunkAcked {
			continue
		}
		if ch.state == chunkFlying {
			c.stats.TimeoutLoss++
			c.ghosts++
			p := &c.paths[ch.path]
			c.lose(p.entry(ch.pseq), true)
			p.silent, p.silentAt, p.silentFlow = true, ch.sentAt, f.number
			c.loseBefore(f, int(ch.path), p) // makes room for it
		}
		return
	}
}

// hold takes what a flow has in flight out of the way of the others: its question was not
// answered although something that was sent after it has arrived, so that it is not the network
// that is silent but the peer's flow, which may not be open yet. Until it is heard of only the
// oldest chunk is sent, with each probe.
func (c *Conn) hold(f *flow) {
	f.held = true
	for csn := f.una; csn < f.nxt; csn++ {
		if ch := f.chunk(csn); ch.state == chunkFlying {
			p := &c.paths[ch.path]
			c.land(p, ch)
			c.noteLost(f, ch)
			c.sweep(int(ch.path), p)
		}
	}
	for csn := f.una; csn < f.nxt; csn++ {
		ch := f.chunk(csn)
		if ch.state != chunkLost {
			continue
		}
		i, p := int(ch.path), &c.paths[ch.path]
		if p.epoch != ch.epoch || !p.carries() {
			i = c.choose(ch.len)
		} else if !c.room(p) {
			i = -1
		}
		if i >= 0 && ch.xmits < maxXmits && c.mayFly(int(ch.len)) {
			c.unlose(f, csn)
			c.transmit(f, csn, i)
		}
		return
	}
}

// solicit asks the peer for an acknowledgement of a flow.
func (c *Conn) solicit(f *flow, route Route) {
	c.stats.Probes++
	f.nonce++
	f.nonceAt = c.now
	a := c.act(ActControl)
	a.Route = route
	a.Record = wire.Record{Type: wire.Solicit, Flow: f.number, Nonce: f.nonce}
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
