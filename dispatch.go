package ibverbx

import "ibverbx/verbs"

// dispatch hands requests to lanes, strictly in order and all of one before the next, as far as
// lanes have room. What goes to one lane is collected and posted as one chain.
func (s *sender) dispatch() {
	f, r, scheme := s.failover, &s.sends, s.setup.scheme
	if f.state != stateConnected {
		if f.state == stateFailed {
			f.flush()
		}
		return
	}
	s.time.tick()
	if f.out > 0 {
		f.reassign()
	}
	for r.dispatched != r.posted {
		one := r.slot(r.dispatched)
		if !one.begun && !s.mayStart(one) {
			break
		}
		if one.isMessage() {
			if !s.sendMessage(one) {
				break
			}
		} else if !scheme.handOver(one) {
			break
		}
		one.pending-- // there is no rest
		r.dispatched++
	}
	scheme.advance()
	s.ring()
	if p := &s.picker; p.ended >= p.adapter.due {
		p.adapter.review(p, &s.setup.cq.idle)
	}
	if s.brokenLane != nil {
		f.laneBroken(s.brokenLane, s.brokenErr)
		s.brokenLane = nil
	}
}

// mayStart reports whether a request may be handed over. A fenced request waits until everything
// before it has ended. A SEND or an atomic waits for all data before it, because the message lane
// orders nothing with other lanes. For the same reason a notified request waits for SENDs and
// atomics before it. It also waits until every entry of a failed lane has been reassigned.
func (s *sender) mayStart(r *sendSlot) bool {
	switch {
	case r.flags&verbs.SendFence != 0:
		return s.inflight == 0 && s.owed == 0
	case r.op == verbs.OpRDMAWriteWithImm:
		return s.messages == 0 && !s.orphaned()
	case r.isMessage():
		return s.inflight == s.messages && s.owed == 0
	}
	return true
}

// orphaned reports whether a data lane out of service has entries in its ledger.
func (s *sender) orphaned() bool {
	if s.failover.out == 0 {
		return false
	}
	for _, l := range s.setup.lanes {
		if l.out() && !l.idle() {
			return true
		}
	}
	return false
}

// standIn returns a lane in service for one that should carry something: the lane itself or, if it
// is out of service and no entry of a failed lane must come first, any other. It returns nil if there
// is none yet.
func (s *sender) standIn(l *lane) *lane {
	if !l.out() {
		return l
	}
	if s.orphaned() {
		return nil
	}
	return s.picker.choose(0)
}

// sendMessage hands a SEND or an atomic to the message lane. It returns false if the lane has no
// room. Each asks for a completion, because the next one may wait long for a receive.
func (s *sender) sendMessage(r *sendSlot) bool {
	l := s.setup.messageLane
	if !l.room() {
		return false
	}
	head := entryHead(s.sends.index(s.sends.dispatched), kindMessage, r.flags&verbs.SendSolicited|verbs.SendSignaled) | entryConsumes
	if isAtomic(r.op) {
		if l.rail != l.life.home {
			return false // atomics of two NICs are not atomic together: wait for the rail
		}
		head = entryHead(s.sends.index(s.sends.dispatched), kindAtomic, verbs.SendSignaled)
	}
	r.begun = true
	r.sent = r.length
	r.pending++
	s.messages++
	s.add(l, head, 0, r.length, r.imm)
	return true
}

// spread gives the rest of a request to lanes, as fragments without a number. A WRITE or READ of no
// bytes is one fragment. spread returns false if the lanes have no room for all of it.
func (s *sender) spread(r *sendSlot) bool {
	whole := r.length <= r.cut
	if !whole && s.picker.policy == RoundRobin {
		return s.stripe(r, r.length, nil)
	}
	head := entryHead(s.sends.index(s.sends.dispatched), r.dataKind(), 0)
	for r.sent < r.length || (r.length == 0 && !r.begun && r.op != verbs.OpRDMAWriteWithImm) {
		n := min(r.cut, r.length-r.sent)
		l := s.picker.pick(n, whole)
		if l == nil {
			return false
		}
		if r.op != verbs.OpRDMARead { // a READ leaves nothing at the peer
			s.carried.add(l.index)
		}
		off := r.sent
		r.begun = true
		r.sent += n
		r.pending++
		s.add(l, head, off, n, 0)
	}
	return true
}

// stripe is spread for round robin, up to the byte at end. A long request spends most of its time
// here, so stripe is written by hand and does not use pick and add. If d is not nil, every fragment
// takes one of its numbers, and there must be enough of them.
func (s *sender) stripe(r *sendSlot, end uint32, d *dqplb) bool {
	lanes, cursor := s.picker.lanes, s.picker.cursor
	head := entryHead(s.sends.index(s.sends.dispatched), r.dataKind(), 0)
	sent, count, full, imm := r.sent, 0, 0, uint32(0)
	if d != nil {
		head |= entryConsumes
	}
	marks := r.op != verbs.OpRDMARead && d == nil
	for sent < end && full < len(lanes) {
		l := lanes[cursor]
		if cursor++; cursor == len(lanes) {
			cursor = 0
		}
		if !l.room() {
			full++
			continue
		}
		full = 0
		if d != nil {
			imm = wireImm(d.number())
			s.carried.remove(l.index)
		} else if marks && count < len(lanes) { // after that every lane with room has had one
			s.carried.add(l.index)
		}
		n := min(r.cut, r.length-sent)
		l.put(head, sent, n, imm)
		sent += n
		count++
		if !l.listed {
			s.list(l)
		} else if l.full() {
			s.ringLane(l)
		}
	}
	s.inflight += count
	r.pending += uint32(count)
	r.begun = r.begun || count > 0
	r.sent, s.picker.cursor = sent, cursor
	return sent >= end
}

// postRun takes a run of requests from the front of wrs and posts it, in one pass: slot, ledger entry and
// physical request of each. It returns how many it took: 0 if the first cannot be in a run, because a
// request waits before it, or no lane has room. What the NIC refuses is staged, as after a dispatch.
func (s *sender) postRun(wrs []SendWR) (n int) {
	r, f, p := &s.sends, s.failover, &s.picker
	if r.dispatched != r.posted || len(s.staged) > 0 || f.state != stateConnected || f.out > 0 || !s.setup.inRun(&wrs[0]) {
		return 0
	}
	s.time.tick()
	l := p.pick(wrs[0].SGE[0].Length, true)
	if l == nil {
		return 0
	}
	chain := s.chain[:min(len(wrs), int(l.depth-l.load()), chainMax)]
	rail, remoteRail := l.rail&(MaxRails-1), l.remoteRail&(MaxRails-1)
	bytes, carries := uint64(0), false
	for {
		wr, one, to := &wrs[n], r.slot(r.posted), &chain[n]
		s.takePlain(one, wr)
		carries = carries || one.op != verbs.OpRDMARead
		bytes += uint64(one.length)
		to.WRID, to.Flags, to.Imm = uint64(l.base|kindPlain.tag()|tag(l.tail)), 0, 0
		to.Opcode, to.NumSGE = one.wire, 1
		to.RemoteAddr, to.RKey = one.target, one.keys[remoteRail].remote
		g := &to.SGE[0]
		g.Addr, g.Length, g.LKey = one.local, one.length, one.keys[rail].local
		l.put(entryHead(r.index(r.posted), kindPlain, 0), 0, one.length, 0)
		r.posted++
		if n++; n == len(chain) || !s.setup.inRun(&wrs[n]) || p.again(wrs[n].SGE[0].Length) != l {
			break
		}
	}
	r.dispatched = r.posted
	s.inflight += n
	if carries {
		s.carried.add(l.index)
	}
	s.signal(l, chain[:n])
	if !s.postChain(l, chain[:n], bytes) {
		s.list(l)
	}
	l.counts.highWater.Raise(uint64(l.load()))
	return n
}

// inRun reports whether a request is a plain WRITE or READ that is neither cut nor fenced.
func (u *setup) inRun(wr *SendWR) bool {
	return runOps>>wr.Opcode&1 != 0 && wr.Flags&verbs.SendFence == 0 && u.isPlain(wr) && wr.SGE[0].Length <= u.fragmentSize(wr.SGE[0].Length)
}

const runOps = uint32(1<<verbs.OpRDMAWrite | 1<<verbs.OpRDMARead)

// signal makes requests of a chain ask for a completion: the last one and every SignalInterval-th before
// it, and the first one if the lane is silent.
func (s *sender) signal(l *lane, chain []verbs.SendWR) {
	interval := s.setup.cfg.SignalInterval
	first := interval - 1
	if l.silent {
		first = 0
	}
	for i := first; i < len(chain); i += interval {
		chain[i].Flags |= verbs.SendSignaled
	}
	chain[len(chain)-1].Flags |= verbs.SendSignaled
}
