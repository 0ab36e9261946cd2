package ibverbx

import "ibverbx/verbs"

// dispatch hands requests to lanes: strictly in order, all of one before the next, as far
// as the lanes have room. What goes to one lane is collected and posted as one chain.
func (q *VirtualQP) dispatch() {
	if q.state != stateConnected {
		if q.state == stateFailed {
			q.flushWaiting()
		}
		return
	}
	q.tick()
	if q.out > 0 {
		q.rehome()
	}
	for q.dispatched != q.posted {
		s := q.slot(q.dispatched)
		if !s.begun && !q.mayStart(s) {
			break
		}
		if s.isMessage() {
			if !q.sendMessage(s) {
				break
			}
		} else if !q.scheme.handOver(s) {
			break
		}
		s.pending-- // nothing of it is left
		q.dispatched++
	}
	q.scheme.advance()
	q.ring()
	if q.brokenLane != nil {
		q.laneBroken(q.brokenLane, q.brokenErr)
		q.brokenLane = nil
	}
}

// mayStart holds back a fenced request until everything before it has ended, and a message
// or an atomic until all data before it has: it goes over another QP, which orders nothing
// with the lanes. For the same reason a notification waits for messages before it.
func (q *VirtualQP) mayStart(s *sendSlot) bool {
	switch {
	case s.flags&verbs.SendFence != 0:
		return q.inflight == 0 && q.owed == 0
	case s.op == verbs.OpRDMAWriteWithImm:
		return q.messages == 0 && q.homeless() == 0
	case s.isMessage():
		return q.inflight == q.messages && q.owed == 0
	}
	return true
}

// spread gives the rest of a request to lanes, as fragments without a number. It reports
// false if the lanes have no room for all of it.
func (q *VirtualQP) spread(s *sendSlot) bool {
	whole := s.length <= s.cut
	if !whole && q.cfg.Policy == RoundRobin {
		return q.stripe(s, s.length, nil)
	}
	head := entryHead(q.index(q.dispatched), s.dataKind(), 0)
	for s.sent < s.length {
		n := min(s.cut, s.length-s.sent)
		l := q.pick(n, whole)
		if l == nil {
			return false
		}
		if s.op != verbs.OpRDMARead { // which leaves nothing at the peer
			q.carried.add(l.index)
		}
		off := s.sent
		s.begun = true
		s.sent += n
		s.pending++
		q.add(l, head, off, n, 0)
	}
	return true
}

// stripe is spread for round robin, up to the byte at end: it is what most of the time of
// a long request goes into, so it does by itself what choose and add do. With d every
// fragment takes one of its numbers, of which there must be enough.
func (q *VirtualQP) stripe(s *sendSlot, end uint32, d *dqplb) bool {
	lanes, cursor := q.lanes, q.cursor
	head := entryHead(q.index(q.dispatched), s.dataKind(), 0)
	sent, count, full, imm := s.sent, 0, 0, uint32(0)
	if d != nil {
		head |= entryConsumes
	}
	marks := s.op != verbs.OpRDMARead && d == nil
	for sent < end && full < len(lanes) {
		l := lanes[cursor]
		if cursor++; cursor == len(lanes) {
			cursor = 0
		}
		if l.tail-l.head >= l.depth || l.barred != 0 {
			full++
			continue
		}
		full = 0
		if d != nil {
			imm = wireImm(d.number())
			q.carried.remove(l.index)
		} else if marks {
			q.carried.add(l.index)
		}
		n := min(s.cut, s.length-sent)
		e := &l.ledger[int(l.tail)&(len(l.ledger)-1)]
		e.head, e.off, e.bytes, e.imm = head, sent, n, imm
		sent += n
		count++
		l.tail++
		l.bytes += uint64(n)
		if !l.listed {
			q.list(l)
		} else if l.tail-l.posted >= chainMax {
			q.ringLane(l)
		}
	}
	q.inflight += count
	s.pending += uint32(count)
	s.begun = s.begun || count > 0
	s.sent, q.cursor = sent, cursor
	return sent >= end
}

// ring rings the doorbells of all lanes that have something staged.
func (q *VirtualQP) ring() {
	q.run = 0
	keep := q.staged[:0]
	for _, l := range q.staged {
		if l.posted != l.tail && l.barred&barOut == 0 {
			q.ringLane(l)
		}
		if l.posted != l.tail && q.state == stateConnected && l.barred&barOut == 0 {
			keep = append(keep, l)
		} else {
			l.listed = false
		}
	}
	q.staged = keep
	if len(keep) > 0 {
		q.cq.touch(q)
	}
}

// fragmentSize says how a request of so many bytes is cut: as Config says or, if that is
// left open, into equal parts for all lanes, within bounds that make a fragment worth its
// while and that every NIC can take.
func (q *VirtualQP) fragmentSize(length uint32) uint32 {
	if q.cfg.FragmentSize != 0 {
		return min(q.cfg.FragmentSize, q.maxMsg)
	}
	if length <= minFragment {
		return min(max(length, 1), q.maxMsg)
	}
	part := (uint64(length)-1)/uint64(len(q.lanes)) + 1
	part = (part + uint64(q.mtu) - 1) / uint64(q.mtu) * uint64(q.mtu)
	return uint32(min(max(part, minFragment), wantFragment, uint64(q.maxMsg)))
}
