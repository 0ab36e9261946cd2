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
	for q.dispatched != q.posted {
		s := q.slot(q.dispatched)
		if !s.begun && !q.mayStart(s) {
			break
		}
		if !q.handOver(s) {
			break
		}
		s.whole = true
		s.open = true
		q.open[kindIndex(s)]++
		q.dispatched++
		q.settle(s)
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
	if s.wr.Flags&verbs.SendFence != 0 {
		return q.open == [2]int{}
	}
	if s.wr.Opcode == verbs.OpRDMAWriteWithImm {
		return q.open[1] == 0
	}
	return !s.isMessage() || q.open[0] == 0
}

// handOver gives the request at dispatched to lanes. It reports false if they have no room
// for the rest.
func (q *VirtualQP) handOver(s *sendSlot) bool {
	if s.isMessage() {
		return q.sendMessage(s)
	}
	size := q.fragmentSize(s.length)
	empty := s.length == 0 && q.cfg.Scheme == DQPLB && !s.begun // its number is the news
	for s.sent < s.length || empty {
		n := min(size, s.length-s.sent)
		last := s.sent+n == s.length
		if !q.scheme.mayStage(s, last) {
			return false
		}
		l := q.pick()
		if l == nil {
			return false
		}
		q.fragment(l, s, n, last)
		empty = false
	}
	return q.scheme.finish(s)
}

// fragment stages n bytes of s on l.
func (q *VirtualQP) fragment(l *lane, s *sendSlot, n uint32, last bool) {
	wr := l.add(kindData, q.dispatched, n)
	wr.Flags, wr.NumSGE, wr.RemoteAddr, wr.RKey = 0, 0, 0, 0
	if n > 0 {
		wr.RemoteAddr = s.wr.Remote.Addr + s.wr.RemoteOffset + uint64(s.sent)
		wr.RKey = s.wr.Remote.RKeys[l.remoteRail]
		if s.wr.Flags&verbs.SendInline != 0 {
			q.inlinePiece(wr, q.dispatched, s.sent, n)
		} else {
			cut(wr, &s.wr, l.rail, s.sent, n)
		}
	}
	q.scheme.fragment(l, s, wr, last)
	s.begun = true
	s.sent += n
	s.frags++
	q.stageOn(l)
}

// stageOn notes that l has something staged, and rings if it is full.
func (q *VirtualQP) stageOn(l *lane) {
	q.list(l)
	if len(l.stage) == cap(l.stage) {
		q.ringLane(l)
	}
}

// cut makes n bytes of a request from off on the local pieces of a fragment.
func cut(wr *verbs.SendWR, from *SendWR, rail uint8, off, n uint32) {
	if e := &from.SGE[0]; off+n <= e.Length && off+n >= off {
		wr.SGE[0] = verbs.SGE{Addr: e.Region.addr + e.Offset + uint64(off), Length: n, LKey: e.Region.lkeys[rail]}
		wr.NumSGE = 1
		return
	}
	k := uint8(0)
	for i := range from.NumSGE {
		e := &from.SGE[i]
		if off >= e.Length {
			off -= e.Length
			continue
		}
		take := min(n, e.Length-off)
		wr.SGE[k] = verbs.SGE{Addr: e.Region.addr + e.Offset + uint64(off), Length: take, LKey: e.Region.lkeys[rail]}
		k++
		if n -= take; n == 0 {
			break
		}
		off = 0
	}
	wr.NumSGE = k
}

// list puts a lane with staged requests on the list for the doorbell.
func (q *VirtualQP) list(l *lane) {
	if !l.listed {
		l.listed = true
		q.staged = append(q.staged, l)
	}
}

// ring rings the doorbells of all lanes that have something staged.
func (q *VirtualQP) ring() {
	keep := q.staged[:0]
	for _, l := range q.staged {
		if len(l.stage) > 0 {
			q.ringLane(l)
		}
		if len(l.stage) > 0 && q.state == stateConnected {
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

// ringLane posts what a lane has staged. A lane that cannot be used any more fails the
// VirtualQP, at the end of dispatch and not in the midst of it.
func (q *VirtualQP) ringLane(l *lane) {
	if err := l.ring(q.cfg.SignalInterval); err != nil && q.brokenLane == nil {
		q.brokenLane, q.brokenErr = l, err
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
		return length
	}
	part := (uint64(length)-1)/uint64(len(q.lanes)) + 1
	part = (part + uint64(q.mtu) - 1) / uint64(q.mtu) * uint64(q.mtu)
	return uint32(min(max(part, minFragment), wantFragment, uint64(q.maxMsg)))
}
