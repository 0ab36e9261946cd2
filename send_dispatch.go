package ibverbx

import (
	"math"

	"ibverbx/verbs"
)

// dispatch assigns requests to lanes in posting order until the lanes are full. Each request, or stripe, is finished
// before the next starts. Each lane's entries leave as one chain.
func (s *sender) dispatch() {
	f, r, scheme := s.failover, &s.sends, s.setup.scheme
	if f.state != stateConnected {
		if f.state == stateFailed {
			f.flush()
		}
		return
	}
	s.clock.tick()
	if f.out > 0 {
		f.reassign()
	}
	for r.dispatched != r.posted {
		one := r.slot(r.dispatched)
		if !one.started {
			if one.length > one.cut && s.stripe() {
				continue
			}
			if !s.mayStart(one) {
				break
			}
		}
		if one.isMessage() {
			if !s.sendMessage(one) {
				break
			}
		} else if !scheme.dispatch(one) {
			break
		}
		one.pending-- // no undispatched rest
		r.dispatched++
	}
	scheme.advance()
	s.ring()
	if p := &s.picker; p.ended >= p.tuner.due {
		p.tuner.review(p, &s.setup.cq.idle)
	}
	if s.brokenLane != nil {
		f.laneBroken(s.brokenLane, s.brokenErr)
		s.brokenLane = nil
	}
}

// mayStart reports whether a request may be dispatched. A fenced request waits until all earlier requests have
// completed. A SEND or an atomic waits for all earlier data, because the message lane is not ordered with other
// lanes. For the same reason, a notified request waits for earlier SENDs and atomics. It also waits until every entry
// of a failed lane has been reassigned.
func (s *sender) mayStart(r *sendSlot) bool {
	switch {
	case r.flags&verbs.SendFence != 0:
		return s.inflight == 0 && s.dueNotifies == 0
	case r.op == verbs.OpRDMAWriteWithImm:
		return s.messages == 0 && !s.hasOrphans()
	case r.isMessage():
		return s.inflight == s.messages && s.dueNotifies == 0
	}
	return true
}

// hasOrphans reports whether the ledger of an out-of-service data lane has entries.
func (s *sender) hasOrphans() bool {
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

// substitute returns a lane in service for l: l itself or, if it is out of service and no entry of a failed lane must
// go first, any other. It returns nil if none is available yet.
func (s *sender) substitute(l *lane) *lane {
	if !l.out() {
		return l
	}
	if s.hasOrphans() {
		return nil
	}
	return s.picker.choose(0)
}

// sendMessage stages a SEND or an atomic on the message lane. It returns false if the lane is full. Each is signaled,
// because the next one may wait for a receive.
func (s *sender) sendMessage(r *sendSlot) bool {
	l := s.setup.messageLane
	if !l.room() || !r.carries(l.rail, l.remoteRail) {
		return false
	}
	head := entryHead(s.sends.index(s.sends.dispatched), kindMessage, r.flags&verbs.SendSolicited|verbs.SendSignaled) | entryConsumes
	if isAtomic(r.op) {
		if l.rail != l.recovery.home {
			return false // atomics of two NICs are not atomic with each other: wait for the home rail
		}
		head = entryHead(s.sends.index(s.sends.dispatched), kindAtomic, verbs.SendSignaled)
	}
	r.started = true
	r.sent = r.length
	r.pending++
	s.messages++
	s.stage(l, head, 0, r.length, r.imm)
	return true
}

// stageFragments stages the rest of a request as fragments without numbers. An empty WRITE or READ is one fragment.
// It returns false if the lanes are full before the end.
func (s *sender) stageFragments(r *sendSlot) bool {
	whole := r.length <= r.cut
	head := entryHead(s.sends.index(s.sends.dispatched), r.dataKind(), 0)
	for r.sent < r.length || (r.length == 0 && !r.started && r.op != verbs.OpRDMAWriteWithImm) {
		n := min(r.cut, r.length-r.sent)
		l := s.pick(r, n, whole)
		if l == nil {
			return false
		}
		if r.op != verbs.OpRDMARead { // a READ writes no peer memory
			s.uncovered.add(l.index)
		}
		off := r.sent
		r.started = true
		r.sent += n
		r.pending++
		s.stage(l, head, off, n, 0)
	}
	return true
}

// stripe is a run of requests with one opcode and an equal number of fragments, which are assigned to the lanes
// round-robin. It is posted lane by lane.
type stripe struct {
	op    verbs.Opcode
	from  uint32 // first request
	count uint32 // number of requests
	cuts  uint32 // fragments per request
	share uint32 // maximum number of entries per lane
	// recorded is set if every lane sends a Tally record behind its fragments of a request; number is the number of
	// the first message. numbered is set if every fragment has a DQPLB number; number is the number of the first
	// fragment.
	numbered, recorded bool
	number             uint32
}

// stripe dispatches the fragmented, unfenced, plain requests at the front of the ring as a stripe, and reports
// whether it did. It requires round-robin, all lanes in service and empty staging. If other requests follow, the
// chains must be long enough to be worth their doorbells.
func (s *sender) stripe() bool {
	r, p := &s.sends, &s.picker
	if p.policy != RoundRobin || len(s.staged) > 0 || s.failover.out > 0 {
		return false
	}
	t := s.uniformRun()
	if t.count == 0 || (t.from+t.count != r.posted && t.share < minRun) {
		return false
	}
	for i := range t.count {
		one := r.slot(t.from + i)
		one.pending, one.sent, one.started = t.cuts, one.length, true
	}
	if t.op == verbs.OpRDMAWriteWithImm {
		t = s.setup.scheme.notifyStripe(t)
	}
	total, lanes := t.count*t.cuts, uint32(len(p.lanes))
	used := min(lanes, total)
	for first := range used {
		s.postLaneShare(p.next(), &t, first)
	}
	p.cursor = int((uint32(p.cursor) + total - used) % lanes)
	r.dispatched += t.count
	return true
}

// uniformRun returns the longest stripe that fits the lanes.
func (s *sender) uniformRun() (t stripe) {
	r, p, lanes := &s.sends, &s.picker, uint32(len(s.picker.lanes))
	first := r.slot(r.dispatched)
	t.op, t.from, t.cuts = first.op, r.dispatched, first.fragments()
	limit := uint32(math.MaxUint32)
	if t.op == verbs.OpRDMAWriteWithImm {
		if s.messages > 0 || !p.lanes[p.cursor].room() {
			return t
		}
		limit, t.recorded = s.setup.scheme.notifyLimit()
	}
	limit = min(limit, lanes*chainMax)
	next, looked, room := p.cursor, uint32(0), uint32(chainMax) // room is the smallest free capacity of the lanes seen so far
	for t.from+t.count != r.posted {
		one, count := r.slot(t.from+t.count), t.count+1
		if one.op != t.op || !one.plain || one.isMessage() || one.flags&verbs.SendFence != 0 || one.length <= one.cut ||
			((one.length != first.length || one.cut != first.cut) && one.fragments() != t.cuts) { // most lengths are equal, and a division takes 3 ns
			break
		}
		total := uint64(count) * uint64(t.cuts)
		if total > uint64(limit) {
			break
		}
		for ; looked < min(uint32(total), lanes); looked++ {
			l := p.lanes[next]
			if next++; next == len(p.lanes) {
				next = 0
			}
			if !l.room() {
				return t
			}
			room = min(room, l.capacity-l.load())
		}
		share := (uint32(total) + lanes - 1) / lanes
		if t.recorded {
			share += min(share, count)
		}
		if share > room {
			break
		}
		t.count, t.share = count, share
	}
	return t
}

// postLaneShare posts a lane's fragments of a stripe: fragment first, counted from the start of the stripe, and then
// one per round of the lanes. It builds ledger entries and physical requests in one pass (BenchmarkMessage, WRITE, 16
// fragments on 16 lanes: 206 to 154 ns).
func (s *sender) postLaneShare(l *lane, t *stripe, first uint32) {
	slots, ledger, tail, mask, chain := s.sends.slots, l.ledger, l.tail, s.sends.depth-1, s.chain
	id, rail, remoteRail := uint64(l.base|kindPlain.tag()), l.rail&(MaxRails-1), l.remoteRail&(MaxRails-1)
	lanes, cuts := uint32(len(s.picker.lanes)), t.cuts
	rounds := (t.count*cuts - first + lanes - 1) / lanes
	hop, rest := lanes/cuts, lanes%cuts // distance between two fragments of the lane, in requests and fragments
	seq, at := t.from+first/cuts, first%cuts
	n, bytes := 0, uint64(0)
	for range rounds {
		one, e, to := &slots[int(seq)&(len(slots)-1)], &ledger[int(tail)&(len(ledger)-1)], &chain[n]
		head, imm := entryHead(uint16(seq&mask), kindPlain, 0), uint32(0)
		if t.numbered {
			imm = numberAfter(t.number, (seq-t.from)*cuts+at)
			head |= entryConsumes
			if at == cuts-1 {
				imm |= dqplbLast
				head |= uint32(one.flags&verbs.SendSolicited) << 24
			}
			imm = wireImm(imm)
		}
		off := at * one.cut
		size := min(one.cut, one.length-off)
		e.head, e.off, e.bytes, e.imm = head, off, size, imm
		dataWR(to, id|uint64(tail), one.wire, verbs.SendFlags(head>>24&0x7f), imm, off, size,
			one.local, one.keys[rail].local, one.target, one.keys[remoteRail].remote)
		bytes += uint64(size)
		tail++
		n++
		if t.recorded && at+lanes >= cuts { // the lane's next fragment belongs to another request
			head = entryHead(uint16(seq&mask), kindRecord, one.flags&verbs.SendSolicited) | entryConsumes
			e, to = &ledger[int(tail)&(len(ledger)-1)], &chain[n]
			e.head, e.off, e.bytes, e.imm = head, 0, 0, 0
			s.recordWR(to, l, head, tail)
			l.lastRecorded = int64(t.number + seq - t.from)
			tail++
			n++
		}
		seq += hop
		if at += rest; at >= cuts {
			at -= cuts
			seq++
		}
	}
	l.tail = tail
	l.bytes += bytes
	consuming := uint32(n) - rounds // records
	switch {
	case t.numbered:
		consuming = rounds
	case t.op == verbs.OpRDMAWrite:
		s.uncovered.add(l.index)
	}
	s.send(l, chain[:n], bytes, consuming)
}

// minRun is the minimum number of similar requests that justify a separate doorbell if other requests follow in the
// same post. With 8, posts of mixed requests over UDP took 1.6 times as long.
const minRun = 32

// postRun posts the plain, unfragmented and unfenced requests at the front of wrs in chains and returns their number.
// It returns 0 while a lane is out of service, if fewer than minRun of them precede others, and for notified requests
// that must cover earlier data. It stops early when all lanes are full or the scheme's window is. Requests that a NIC
// rejects are staged, as after a dispatch. All earlier requests must have been dispatched.
func (s *sender) postRun(wrs []SendWR) (n int) {
	f, scheme := s.failover, s.setup.scheme
	if f.state != stateConnected || f.out > 0 {
		return 0
	}
	notified := wrs[0].Opcode == verbs.OpRDMAWriteWithImm
	ops := uint32(1 << verbs.OpRDMAWriteWithImm) // a run has immediates on all requests or on none
	if !notified {
		ops = plainOps &^ ops
	} else if limit, _ := scheme.notifyLimit(); limit == 0 || s.messages > 0 {
		return 0
	} else if uint64(len(wrs)) > uint64(limit) {
		wrs = wrs[:limit]
	}
	k := s.setup.plainPrefix(wrs, ops, plainFlags&^verbs.SendFence, s.setup.maxWhole)
	if k < min(len(wrs), minRun) {
		return 0
	}
	wrs = wrs[:k]
	s.clock.tick()
	for n < len(wrs) && len(s.staged) == 0 {
		was := s.picker.pickState
		l := s.picker.pick(wrs[n].SGE[0].Length, true)
		if l == nil {
			break
		}
		run := wrs[n : n+1+s.picker.extendRun(l, wrs[n+1:])]
		if notified {
			c := scheme.run(l, run, s.chain)
			if c.taken == 0 {
				s.picker.pickState = was // dispatch picks again
				break
			}
			s.send(l, c.wrs, c.bytes, c.consuming)
			n += c.taken
			continue
		}
		bytes, carries := s.fill(l, run, s.chain, false)
		if carries {
			s.uncovered.add(l.index)
		}
		s.send(l, s.chain[:len(run)], bytes, 0)
		n += len(run)
	}
	return n
}

// laneChain is one lane's part of a run.
type laneChain struct {
	taken     int            // number of requests
	wrs       []verbs.SendWR // physical requests
	bytes     uint64         // length of all requests
	consuming uint32         // number of physical requests that consume a receive at the peer
}

// fill builds the slots, ledger entries and physical requests of a chain in one pass. The lane must not be full.
// notifies is set if each request consumes a receive at the peer; it is false for notified requests with a separate
// notification, which demote then converts. fill returns the chain's bytes and whether any of them are written to the
// peer. Like setup.plainPrefix, it is a loop without calls.
func (s *sender) fill(l *lane, wrs []SendWR, chain []verbs.SendWR, notifies bool) (bytes uint64, carries bool) {
	r, u := &s.sends, s.setup
	slots, ledger, seq, tail, mask := r.slots, l.ledger, r.posted, l.tail, r.depth-1
	var keys [MaxRails]keyPair // keys of from and into
	var from *Region
	var into *RemoteRegion
	var lkey, rkey uint32 // the lane's keys
	rails := max(len(u.rails.rails), u.remoteRails)
	id := uint64(l.base | kindPlain.tag())
	var consumes uint32
	var passed verbs.SendFlags // flags passed on to the NIC
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

		one.fill(wr, wr.Opcode, length, length, local, target)
		if region != from || m != into {
			from, into = region, m
			u.setKeys(&keys, region, m)
			lkey, rkey = keys[l.rail&(MaxRails-1)].local, keys[l.remoteRail&(MaxRails-1)].remote
		}
		one.keys[0], one.keys[1] = keys[0], keys[1] // the common case; the other rails are in another cache line
		for k := 2; k < rails; k++ {
			one.keys[k&(MaxRails-1)] = keys[k&(MaxRails-1)]
		}

		e.head, e.off, e.bytes, e.imm = entryHead(uint16(seq&mask), kindPlain, flags)|consumes, 0, length, wr.Imm
		dataWR(to, id|uint64(tail), wr.Opcode, flags, wr.Imm, 0, length, local, lkey, target, rkey)
		seq++
		tail++
	}
	r.posted, r.dispatched = seq, seq
	l.tail = tail
	l.bytes += bytes
	return bytes, carries
}

// demote converts a notified request built by fill into a WRITE with a separate notification.
func (r *sendSlot) demote(to *verbs.SendWR) {
	r.wire, r.pending = verbs.OpRDMAWrite, 2
	to.Opcode, to.Imm = verbs.OpRDMAWrite, 0
}

// pick chooses a lane for a request's next n bytes among the lanes that its keys allow; see picker.pick.
func (s *sender) pick(r *sendSlot, n uint32, whole bool) *lane {
	if r.plain || !r.partial {
		return s.picker.pick(n, whole)
	}
	return s.pickPartial(r, n, whole)
}

func (s *sender) pickPartial(r *sendSlot, n uint32, whole bool) *lane {
	for _, l := range s.setup.lanes {
		if !r.carries(l.rail, l.remoteRail) {
			l.blocked |= blockNoKey
		}
	}
	l := s.picker.pick(n, whole)
	for _, l := range s.setup.lanes {
		l.blocked &^= blockNoKey
	}
	return l
}
