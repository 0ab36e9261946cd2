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
		q.fail(q.brokenLane, q.brokenErr)
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
		return q.messageLane.idle()
	case s.isMessage():
		return q.inflight == int(q.messageLane.tail-q.messageLane.head) && q.owed == 0
	}
	return true
}

// spread gives the rest of a request to lanes, as fragments without a number. It reports
// false if the lanes have no room for all of it.
func (q *VirtualQP) spread(s *sendSlot) bool {
	slot := q.index(q.dispatched)
	whole := s.length <= s.cut
	mark := uint64(1)
	if s.op == verbs.OpRDMARead {
		mark = 0 // leaves nothing at the peer
	}
	for s.sent < s.length {
		n := min(s.cut, s.length-s.sent)
		l := q.pick(n, whole)
		if l == nil {
			return false
		}
		q.carried[l.index>>6] |= mark << (l.index & 63)
		q.fragment(l, s, entry{slot: slot, kind: kindData, off: s.sent, bytes: n})
	}
	return true
}

// fragment stages a fragment of s.
func (q *VirtualQP) fragment(l *lane, s *sendSlot, e entry) {
	s.begun = true
	s.sent += e.bytes
	s.pending++
	q.stage(l, e)
}

// ring rings the doorbells of all lanes that have something staged.
func (q *VirtualQP) ring() {
	q.run = 0
	keep := q.staged[:0]
	for _, l := range q.staged {
		if l.posted != l.tail {
			q.ringLane(l)
		}
		if l.posted != l.tail && q.state == stateConnected {
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
