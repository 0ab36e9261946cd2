package softnic

import "ibverbx/verbs"

// sgeList holds the SGEs of a request with more than verbs.MaxSGE of them. Such requests are rare, so lists lie beside
// the queues.
type sgeList [maxSGE]verbs.SGE

// splitSGE returns the maximum number of SGEs in a request itself, and in a list: 0 without lists.
func splitSGE(n int) (own, list uint8) {
	if n > verbs.MaxSGE {
		return verbs.MaxSGE, uint8(n)
	}
	return uint8(max(n, 1)), 0
}

// sgeLists holds the SGE limits of a send queue, and the SGEs of requests with a list.
type sgeLists struct {
	// own is the maximum number of SGEs in a request itself, list that in a list.
	own, list uint8
	// lists holds the lists, one per slot of the queue. It is nil before the first one.
	lists []sgeList
}

// scratchMemory is a NIC's scratch space for data between packets and memory.
type scratchMemory struct {
	// placed is the GRH of a datagram, or the result of an atomic.
	placed [verbs.GRHLen]byte
	// gathered is the payload of a packet with more segments than a packet can refer to, or from device memory.
	gathered []byte
	// copies holds the operands and device copies of datagrams on a memory link.
	copies copies
}

func errNotListed(what string, i int, n uint8) error {
	return verbs.Invalidf("%s %d of the chain: %d SGEs do not fit the request; put them into a list and set Listed to 1", what, i, n)
}

// takeList copies the list of a request to the slot at tail and returns it. It returns nil for a request without one,
// or that is invalid for another reason.
func (q *qp) takeList(wr *verbs.SendWR) []verbs.SGE {
	if wr.Listed != 1 || wr.NumSGE <= verbs.MaxSGE || wr.NumSGE > q.sge.list || q.legal>>wr.Opcode&1 == 0 || !wr.Flags.Valid() {
		return nil
	}
	if q.sge.lists == nil {
		q.sge.lists = make([]sgeList, len(q.sq))
	}
	list := q.listOf(q.sqTail)[:wr.NumSGE]
	copy(list, sgesAt(wr.SGE[0].Addr, wr.NumSGE))
	return list
}

// listOf returns the list of the request with sequence number i.
func (s *sendQueue) listOf(i uint32) *sgeList { return &s.sge.lists[int(i)&(len(s.sq)-1)] }

// sges returns the SGEs of the request with sequence number i.
func (s *sendQueue) sges(i uint32) []verbs.SGE {
	w := s.wqe(i)
	if w.numSGE > verbs.MaxSGE {
		return s.listOf(i)[:w.numSGE]
	}
	return w.sge[:w.numSGE]
}

// maxGathered is the maximum size in bytes of the kept scratch buffer. A packet on a memory link may have any length.
const maxGathered = 1 << 16

// takeList queues the list of receive i of a chain.
func (r *recvQueue) takeList(i int, wr *verbs.RecvWR) error {
	if limit := max(r.maxSGE, r.maxList); wr.NumSGE > limit {
		return verbs.Invalidf("receive %d of the chain has %d SGEs, the queue allows %d", i, wr.NumSGE, limit)
	}
	if wr.Listed != 1 {
		return errNotListed("receive", i, wr.NumSGE)
	}
	var list sgeList
	copy(list[:], sgesAt(wr.SGE[0].Addr, wr.NumSGE))
	r.lists.Push(list)
	return nil
}

// recvSGEs returns the SGEs of cur.
func (q *qp) recvSGEs() []verbs.SGE {
	if q.cur.numSGE > verbs.MaxSGE {
		return q.curList[:q.cur.numSGE]
	}
	return q.cur.sge[:q.cur.numSGE]
}

// unlisted returns w, nil if its SGEs are in a list.
func (w *recvWQE) unlisted() *recvWQE {
	if w.numSGE > verbs.MaxSGE {
		return nil
	}
	return w
}
