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

// leastRun is how many requests of one kind are worth a doorbell of their own if others follow in the same post. With 8, posts of
// mixed requests over UDP took 1.6 times as long.
const leastRun = 32

// postRun takes the requests from the front of wrs that can be in a run, and posts them in chains. It returns how many it took. That is 0
// while a request waits before them or a lane is out of service, if fewer than leastRun of them come before others, and for notified requests
// that have to cover data before them, or whose scheme has no runs. It is fewer than there are if no lane has room. What a NIC refuses is
// staged, as after a dispatch.
func (s *sender) postRun(wrs []SendWR) (n int) {
	f := s.failover
	if s.sends.dispatched != s.sends.posted || f.state != stateConnected || f.out > 0 {
		return 0
	}
	notified := wrs[0].Opcode == verbs.OpRDMAWriteWithImm
	t, isTally := s.setup.scheme.(*tally)
	if notified && (!isTally || s.messages > 0 || s.carried.first() >= 0) {
		return 0
	}
	k := s.setup.run(wrs)
	if k < min(len(wrs), leastRun) {
		return 0
	}
	wrs = wrs[:k]
	s.time.tick()
	for n < len(wrs) && len(s.staged) == 0 {
		was := s.picker.turn
		l := s.picker.pick(wrs[n].SGE[0].Length, true)
		if l == nil {
			break
		}
		run := wrs[n : n+1+s.picker.share(l, wrs[n+1:])]
		chain, consuming := s.chain[:len(run)], uint32(0)
		var bytes uint64
		if notified {
			if run, chain, bytes = t.run(l, run, s.chain); len(run) == 0 {
				s.picker.turn = was // dispatch picks again
				break
			}
			consuming = uint32(len(run))
		} else {
			var carries bool
			if bytes, carries = s.fill(l, run, chain, false); carries {
				s.carried.add(l.index)
			}
		}
		s.inflight += len(chain)
		s.signal(l, chain, bytes, consuming)
		if s.postChain(l, chain, bytes) {
			l.life.sent += consuming
		} else {
			s.list(l)
		}
		l.counts.highWater.Raise(uint64(l.load()))
		n += len(run)
	}
	return n
}

// fill makes the slots, the ledger entries and the physical requests of a chain in one pass. The lane has room for it. notifies says that
// each request uses up a receive of the peer; it is false also for one whose record does. fill returns how many bytes the chain has, and
// whether some go to the peer. Like setup.front, it is a loop without calls.
func (s *sender) fill(l *lane, wrs []SendWR, chain []verbs.SendWR, notifies bool) (bytes uint64, carries bool) {
	r, u := &s.sends, s.setup
	slots, ledger, seq, tail, mask := r.slots, l.ledger, r.posted, l.tail, r.depth-1
	var keys [MaxRails]keyPair // those of from and into
	var from *Region
	var into *RemoteRegion
	var lkey, rkey uint32 // those of the lane
	rails := max(u.rails.Len(), u.remoteRails)
	id := uint64(l.base | kindPlain.tag())
	var consumes uint32
	var passed verbs.SendFlags // the flags that the NIC gets
	if notifies {
		consumes, passed = entryConsumes, verbs.SendSolicited
	}
	chain = chain[:len(wrs)]
	for i := range wrs {
		wr, one, to, e := &wrs[i], &slots[int(seq)&(len(slots)-1)], &chain[i], &ledger[int(tail)&(len(ledger)-1)]
		g, m := &wr.SGE[0], wr.Remote
		region, length := g.Region, g.Length
		local, target := region.addr+g.Offset, m.Addr+wr.RemoteOffset
		flags := wr.Flags & passed
		bytes += uint64(length)
		carries = carries || wr.Opcode != verbs.OpRDMARead

		one.id, one.local, one.target = wr.WRID, local, target
		one.length, one.sent, one.pending, one.cut = length, 0, 1, length
		one.op, one.wire, one.flags, one.status = wr.Opcode, wr.Opcode, wr.Flags, verbs.StatusSuccess
		one.plain, one.begun, one.owes, one.refused = true, false, false, false
		if region != from || m != into {
			from, into = region, m
			u.setKeys(&keys, region, m)
			lkey, rkey = keys[l.rail&(MaxRails-1)].local, keys[l.remoteRail&(MaxRails-1)].remote
		}
		one.keys[0], one.keys[1] = keys[0], keys[1] // most VirtualQPs have at most two rails, and the rest is in another cache line
		for k := 2; k < rails; k++ {
			one.keys[k&(MaxRails-1)] = keys[k&(MaxRails-1)]
		}

		e.head, e.off, e.bytes, e.imm = entryHead(uint16(seq&mask), kindPlain, flags)|consumes, 0, length, wr.Imm

		to.WRID, to.Flags, to.Imm = id|uint64(tail), flags, wr.Imm
		to.Opcode, to.NumSGE = wr.Opcode, 1
		to.RemoteAddr, to.RKey = target, rkey
		sge := &to.SGE[0]
		sge.Addr, sge.Length, sge.LKey = local, length, lkey
		seq++
		tail++
	}
	r.posted, r.dispatched = seq, seq
	l.tail = tail
	l.bytes += bytes
	return bytes, carries
}

// A completion costs as much as several short requests, so the requests of a chain share one. A chain of more than signalBytes, or
// one with messages, has one for every signalRequests: the sender can fill its window again before the whole chain has arrived.
const (
	signalBytes    = 8 << 10
	signalRequests = 16
)

// signal makes requests of a chain of so many bytes ask for a completion: the last one, those before it at intervals, and the
// first one if the lane is silent. consuming is how many of them use up a receive of the peer.
func (s *sender) signal(l *lane, chain []verbs.SendWR, bytes uint64, consuming uint32) {
	interval := s.setup.cfg.SignalInterval
	if interval == 0 {
		if interval = signalRequests; bytes <= signalBytes && consuming == 0 {
			interval = chainMax
		}
	}
	if consuming > 0 { // if the peer has few receives, one of the messages that it takes must ask
		interval = min(interval, s.setup.remoteRecvs)
	}
	first := interval - 1
	if l.silent {
		first = 0
	}
	for i := first; i < len(chain); i += interval {
		chain[i].Flags |= verbs.SendSignaled
	}
	chain[len(chain)-1].Flags |= verbs.SendSignaled
}
