package core

// Never is the value of Deadline when no timer is armed.
const Never int64 = never

// Deadline returns the time of the next EvTick, or Never.
func (c *Conn) Deadline() int64 {
	d := min(c.rack.reorderAt, c.credits.requestAt, c.nextFlowTimer(), c.congestion.drain.until)
	if len(c.up) < len(c.paths) { // a path in PathUp does not use its timer
		for i := range c.paths {
			d = min(d, c.paths[i].timerAt)
		}
	}
	return d
}

// deadline is the next timer of the flow.
func (f *flow) deadline() int64 {
	d := min(f.send.probeAt, f.recv.ackAt)
	if f.failed {
		return d
	}
	d = min(d, f.send.requestAgainAt())
	if f.send.busy {
		d = min(d, f.since()+f.giveUp)
	}
	d = min(d, f.fetches.probeAt(f))
	if f.recvTimerRuns() {
		d = min(d, f.send.noRecvAt+f.recvTimeout)
	}
	return d
}

// since is the last known progress of the flow. A flow with nothing in flight waits for its
// turn as long as other flows make progress, and for credit as long as the peer responds.
func (f *flow) since() int64 {
	if f.send.una == f.send.nxt {
		return max(f.send.progressAt, f.c.arrivedAt, f.c.credits.grantedAt)
	}
	return f.send.progressAt
}

// probeAt returns when a flow that only waits for a response checks that the peer's flow has not failed, or never. The
// progress of other flows defers giveUp, and the Fault of the peer's flow may be lost.
func (q *fetches) probeAt(f *flow) int64 {
	if f.send.una != f.send.nxt || !q.waiting() {
		return never
	}
	return max(f.send.progressAt, q.probedAt) + f.giveUp
}

// tick runs all expired timers.
func (c *Conn) tick() {
	for c.nextFlowTimer() <= c.now {
		f := c.flows[c.heap[0]]
		// The delay of a timer is not silence of the peer: this process did not run, and may not have
		// seen recent arrivals. A flow still gives up, after the same time between timers.
		f.send.progressAt = min(f.send.progressAt+c.now-f.due, c.now)
		f.setDue(never) // until the step ends
		f.touch()
		f.onTimer()
	}
	if c.Over() {
		return
	}
	c.congestion.expire()
	if c.now >= c.rack.reorderAt {
		c.loseLate()
	}
	for i := 0; i < len(c.touched); i++ {
		if f := c.flows[c.touched[i]]; !f.failed && c.now >= f.send.probeAt {
			f.probe()
		}
	}
	for i := range c.paths {
		if c.now >= c.paths[i].timerAt {
			c.paths[i].onTimer()
		}
	}
}

// onTimer runs the expired timers of the flow, except probes: the other timers may make them unnecessary.
func (f *flow) onTimer() {
	now := f.c.now
	if now >= f.recv.ackAt {
		f.recv.flushAck()
	}
	switch {
	case f.failed:
	case f.send.busy && now >= f.since()+f.giveUp:
		f.fail(statusRetryExc)
	case now >= f.fetches.probeAt(f):
		f.fetches.probedAt = now
		f.c.sendSolicit(f, f.c.nextRoute())
	case f.recvTimerRuns() && now >= f.send.noRecvAt+f.recvTimeout:
		f.fail(statusRNRExc)
	}
}

// arm sets the timers of the flow's sender.
func (f *flow) arm() {
	s, c := &f.send, f.c
	waits := s.una < s.nxt
	busy := waits || f.pending() || f.fetches.waiting()
	if busy && !s.busy {
		s.progressAt = c.now
	}
	s.busy = busy
	switch {
	case waits:
		if s.probeAt == never {
			s.probeAt = c.now + c.probeWait(s.probes)
		}
	case s.noRecv:
		switch {
		case s.recvProbes == 0 && c.control.posting:
			s.probeAt = c.now // at the latest
			c.requestAtFlush(f)
		case s.recvProbes == 0:
			s.recvProbes = 1
			f.solicit(c.control.route) // at once, because the peer may have posted a receive
			s.probeAt = c.now + c.probeWait(1)
		case s.probeAt == never:
			s.probeAt = c.now + c.probeWait(s.recvProbes)
		}
	default:
		s.probeAt, s.probes, s.recvProbes = never, 0, 0
	}
	c.requestReceives(f)
}

// probeWait is the delay of a sender before probe number n. Several probes fit into every GiveUp, so
// a live peer responds to one of them.
func (c *Conn) probeWait(n uint8) int64 {
	least := c.cfg.MinProbe
	if n == 0 { // a late peer costs a small packet
		least = min(least, 4*c.rtt.srtt)
	}
	base := c.rtt.bound() + max(c.rtt.srtt, least)
	return min(base<<min(n, 20), max(min(c.cfg.MaxProbe, c.minGiveUp/4), base))
}

// probe requests an acknowledgement, each time by another route. From the second time on it also
// retransmits the oldest chunk on its path, unless the peer may lack a receive: a stalled peer
// has not processed the earlier chunks yet.
func (f *flow) probe() {
	s, c := &f.send, f.c
	s.probeAt = never
	if s.una == s.nxt {
		if s.noRecv {
			s.recvProbes = min(s.recvProbes+1, 30)
			f.solicit(c.nextRoute())
		}
		return
	}
	s.probes = min(s.probes+1, 30)
	if s.probes == 1 {
		f.solicit(c.control.route)
		return
	}
	asked := s.nonceAt
	f.solicit(c.nextRoute())
	if asked != never && c.rack.at >= asked {
		f.suspend()
		return
	}
	if c.flying+c.timedOut >= c.window+c.window/8 { // peers keep an eighth more receives than they advertise
		return
	}
	for csn := s.una; csn < s.nxt; csn++ {
		ch := s.chunk(csn)
		if ch.state == chunkAcked {
			continue
		}
		if ch.state == chunkFlying && ch.xmits < maxSilentXmits {
			c.stats.TimeoutLoss++
			c.timedOut++
			p := &c.paths[ch.path]
			c.lose(p.entry(ch.pseq), true)
			p.silent, p.silentAt, p.silentFlow = true, ch.sentAt, f.number
			f.loseBefore(p) // frees its ledger entry
		}
		return
	}
}

// suspend stops the flow from blocking the others. Its Solicit has no response although something sent
// later has arrived: the network works, but the peer's flow may not be open yet. Until the peer
// acknowledges the flow, every probe retransmits only the oldest chunk.
func (f *flow) suspend() {
	s, c := &f.send, f.c
	f.suspended = true
	for csn := s.una; csn < s.nxt; csn++ {
		if ch := s.chunk(csn); ch.state == chunkFlying {
			p := &c.paths[ch.path]
			p.endFlight(ch)
			f.noteLost(ch)
			p.sweep()
		}
	}
	for csn := s.una; csn < s.nxt; csn++ {
		ch := s.chunk(csn)
		if ch.state != chunkLost {
			continue
		}
		p := c.paths[ch.path].ifHasRoom()
		if last := &c.paths[ch.path]; last.epoch != ch.epoch || !last.carries() {
			p = c.choose(ch.len)
		}
		if p != nil && ch.xmits < maxSilentXmits && c.fitsWindows(int(ch.len)) {
			f.unlose(ch)
			f.transmit(csn, p)
		}
		return
	}
}

// solicit requests an acknowledgement of the flow from the peer.
func (f *flow) solicit(route Route) {
	s, c := &f.send, f.c
	c.stats.Probes++
	c.sendSolicit(f, route)
	s.probed, s.nonceAt = s.nonce, c.now
}

// nextRoute cycles through the control QPs and the paths that are up, so that no single dead route
// stops the connection.
func (c *Conn) nextRoute() Route {
	n := c.control.routeTurns
	c.control.routeTurns++
	if n%3 < 2 {
		return Route(n % 3)
	}
	if k := uint32(len(c.up)); k > 0 {
		return RoutePath + Route(c.up[n/3%k])
	}
	return c.control.route
}
