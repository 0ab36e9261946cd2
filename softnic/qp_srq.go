package softnic

import (
	"fmt"
	"slices"
	"time"

	"ibverbx/internal/ring"
	"ibverbx/verbs"
)

// recvWQE is a posted receive.
type recvWQE struct {
	wrid   uint64
	numSGE uint8
	sge    [verbs.MaxSGE]verbs.SGE
}

// recvQueue is a bounded queue of receives. Its ring starts small and grows with the number of waiting
// receives.
type recvQueue struct {
	ring ring.Ring[recvWQE]
	// used counts receives with unpolled completions, and waiting receives. It is allocated separately
	// because unpolled completions point to it.
	used  *slotCount
	maxWR uint32
	// lists holds the SGE lists of waiting receives, in queue order.
	lists ring.Ring[sgeList]
	// maxSGE is the maximum number of SGEs stored in a receive itself, maxList the maximum in a list.
	maxSGE, maxList uint8
}

// newRecvQueue returns a queue that completes in c, or in several CQs if c is nil.
func newRecvQueue(maxWR, maxSGE int, c *cq) recvQueue {
	r := recvQueue{ring: ring.New[recvWQE](min(maxWR, fewWR)), used: &slotCount{cq: c}, maxWR: uint32(maxWR)}
	r.maxSGE, r.maxList = splitSGE(maxSGE)
	return r
}

// post adds receives, up to the first that does not fit or is illegal.
func (r *recvQueue) post(wrs []verbs.RecvWR) (int, error) {
	n, err := r.enqueue(wrs)
	r.used.taken += uint32(n)
	return n, err
}

func (r *recvQueue) enqueue(wrs []verbs.RecvWR) (int, error) {
	free := r.used.room(r.maxWR, len(wrs))
	r.ring.Reserve(r.ring.Len() + min(free, len(wrs)))
	for i := range wrs {
		wr := &wrs[i]
		if i >= free {
			return i, verbs.ErrQueueFull
		}
		if wr.NumSGE > r.maxSGE {
			if err := r.takeList(i, wr); err != nil {
				return i, err
			}
		}
		w := r.ring.Extend()
		w.wrid, w.numSGE = wr.WRID, wr.NumSGE
		for k := range min(wr.NumSGE, verbs.MaxSGE) {
			w.sge[k] = wr.SGE[k]
		}
	}
	return len(wrs), nil
}

// pop moves the oldest receive to w, and its list, if any, to *list. It returns false if the queue is
// empty.
func (r *recvQueue) pop(w *recvWQE, list **sgeList) bool {
	if r.ring.Len() == 0 {
		return false
	}
	// Field by field, as enqueue writes: a wide load right behind narrow stores waits for them.
	f := r.ring.Front()
	w.wrid, w.numSGE, w.sge[0] = f.wrid, f.numSGE, f.sge[0]
	if f.numSGE > 1 {
		w.sge = f.sge
	}
	if f.numSGE > verbs.MaxSGE {
		if *list == nil {
			*list = new(sgeList)
		}
		**list = r.lists.Pop()
	}
	r.ring.Drop(1)
	return true
}

// srq is a shared receive queue.
type srq struct {
	gate
	recvQueue
	pd *pd
	// limit is the number of receives below which the limit event is raised. 0 means disarmed.
	limit uint32
	// turns holds the RC QPs that found no receive and whose peers will retry, in order of their first
	// request. Each is entitled to one receive before others, so that no sender can starve the rest.
	turns []srqTurn
	// users counts the QPs on the queue.
	users  int
	closed bool
}

// srqTurn is a QP's claim on a receive.
type srqTurn struct {
	q     *qp
	until int64 // expiry time, in case the peer has exited
}

// turnTimeout is the lifetime of a turn beyond the RNR timer, in nanoseconds. RC retries a request several
// times within it.
const turnTimeout = int64(2 * time.Second)

// admit reports whether a QP may dequeue a receive. Otherwise it gives an RC QP a turn.
func (s *srq) admit(q *qp) bool {
	if len(s.turns) == 0 && s.ring.Len() > 0 {
		return true
	}
	now := q.core.clock()
	s.turns = slices.DeleteFunc(s.turns, func(t srqTurn) bool { return t.until < now })
	i := slices.IndexFunc(s.turns, func(t srqTurn) bool { return t.q == q })
	if i < 0 {
		i = len(s.turns)
	}
	switch {
	case s.ring.Len() > i:
		s.turns = slices.Delete(s.turns, i, min(i+1, len(s.turns)))
		return true
	case q.typ != verbs.RC:
		return false // its peer is not notified of the refusal
	case i == len(s.turns):
		s.turns = append(s.turns, srqTurn{q: q})
	}
	s.turns[i].until = now + int64(verbs.RNRTimer(q.attr.MinRNRTimer)) + turnTimeout
	return false
}

// forget removes the turn of a QP that needs no further receives.
func (s *srq) forget(q *qp) {
	s.turns = slices.DeleteFunc(s.turns, func(t srqTurn) bool { return t.q == q })
}

var _ verbs.SRQ = (*srq)(nil)

func (d *pd) createSRQ(cfg verbs.SRQConfig) (verbs.SRQ, error) {
	switch {
	case cfg.MaxWR <= 0 || cfg.MaxWR > maxWR:
		return nil, verbs.Invalidf("SRQConfig.MaxWR is %d: want 1 to %d", cfg.MaxWR, maxWR)
	case cfg.MaxSGE < 0 || cfg.MaxSGE > maxSGE:
		return nil, verbs.Invalidf("SRQConfig.MaxSGE is %d: want 0 to %d", cfg.MaxSGE, maxSGE)
	case cfg.Limit < 0 || cfg.Limit > cfg.MaxWR:
		return nil, verbs.Invalidf("SRQConfig.Limit is %d: want 0 to MaxWR, %d", cfg.Limit, cfg.MaxWR)
	case d.srqs.len() >= maxSRQ:
		return nil, verbs.ErrLimit
	}
	s := &srq{pd: d, recvQueue: newRecvQueue(cfg.MaxWR, cfg.MaxSGE, nil), limit: uint32(cfg.Limit)}
	d.srqs.add(s)
	return s, nil
}

func (s *srq) MaxWR() int { return int(s.maxWR) }

func (s *srq) PostRecv(wrs []verbs.RecvWR) (int, error) {
	mu := s.guard(&s.pd.ctx.core.mu)
	n, err := 0, s.usable()
	if err == nil {
		n, err = s.post(wrs)
	}
	mu.Unlock()
	if err != nil && err != verbs.ErrQueueFull { //nolint:errorlint // post returns it bare
		err = verbs.NewOpError("post receive to SRQ", s.pd.ctx.nic.name, 0, err)
	}
	return n, err
}

func (s *srq) usable() error {
	if s.closed {
		return verbs.ErrClosed
	}
	return s.pd.usable()
}

func (s *srq) SetLimit(limit int) error {
	c := s.pd.ctx.core
	c.mu.Lock()
	defer c.mu.Unlock()
	err := s.usable()
	if err == nil && (limit < 0 || uint32(limit) > s.maxWR) {
		err = verbs.Invalidf("SRQ limit %d: want 0 to %d", limit, s.maxWR)
	}
	if err != nil {
		return verbs.NewOpError("modify SRQ", s.pd.ctx.nic.name, 0, err)
	}
	s.limit = uint32(limit)
	s.checkLimit()
	return nil
}

// Limit returns the limit that is armed, or 0. It is not part of verbs.SRQ; callers that answer ibv_query_srq(3) use a type assertion.
func (s *srq) Limit() int {
	c := s.pd.ctx.core
	c.mu.Lock()
	defer c.mu.Unlock()
	return int(s.limit)
}

// checkLimit raises the limit event and disarms the limit when the queue is below its limit.
func (s *srq) checkLimit() {
	if s.limit > 0 && uint32(s.ring.Len()) < s.limit {
		s.limit = 0
		s.pd.ctx.raise(verbs.Event{Type: verbs.EventSRQLimitReached, SRQ: s})
	}
}

func (s *srq) Close() error {
	c := s.pd.ctx.core
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.closed {
		return nil
	}
	if s.users > 0 {
		return verbs.NewOpError("close SRQ", s.pd.ctx.nic.name, 0, busyQPs(s.users))
	}
	s.destroy()
	return nil
}

func (s *srq) destroy() {
	s.closed = true
	s.pd.srqs.remove(s)
	s.pd.ctx.purge(func(e verbs.Event) bool { return e.SRQ == verbs.SRQ(s) })
}

func busyQPs(n int) error { return fmt.Errorf("%w: %d QPs use it", verbs.ErrBusy, n) }

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
