package softnic

import (
	"slices"

	"ibverbx/internal/shm"
	"ibverbx/verbs"
)

const (
	// creditLow is the number of unused credits below which new receives are published immediately.
	creditLow = 8
	// creditBatch is the number of new receives that always triggers an update. Each update costs both
	// sides a cache miss.
	creditBatch = 64
)

// posted updates the credits after the program has posted n receives.
func (q *qp) posted(n int) {
	q.measureReceives(n)
	q.updateCredit()
}

// measureReceives updates shortest for the last n receives.
func (q *qp) measureReceives(n int) {
	r := &q.rq.ring
	if r.Len() == n {
		q.shortest = shm.MaxPayload
	}
	for seq := r.Tail() - uint32(n); seq != r.Tail(); seq++ {
		q.shortest = min(q.shortest, q.fits(r.At(seq)))
	}
}

// fits returns the number of bytes that fit a receive, up to its first unusable SGE, and 0 for a list.
// The result is valid until one of its regions is closed.
func (q *qp) fits(w *recvWQE) (n uint32) {
	if w.numSGE > verbs.MaxSGE {
		return 0
	}
	for k := range w.sge[:w.numSGE] {
		s, m := &w.sge[k], q.nic.mrs.get(w.sge[k].LKey)
		if _, ok := m.find(q.pd, s.Addr, s.Length, verbs.AccessLocalWrite); !ok {
			break
		}
		m.received = true
		if n += min(s.Length, shm.MaxPayload); n >= shm.MaxPayload {
			break
		}
	}
	return n
}

// updateCredit publishes new receives to the peer if its credits are low or many receives are new.
func (q *qp) updateCredit() {
	tail := q.rq.ring.Tail()
	if n := tail - q.advertised; !q.credited || n == 0 || (n < creditBatch && int32(q.advertised-q.rq.ring.Head()) >= creditLow) {
		return
	}
	q.publishCredit(tail)
}

// publishCredit publishes the receives up to tail to the peer.
func (q *qp) publishCredit(tail uint32) {
	q.advertised = tail
	for _, b := range q.core.neighbors {
		if b.mayCredit(q) {
			b.own.Credit(q.num).Store(shm.CreditWord(tail-q.base, min(q.shortest, q.seg)))
		}
	}
}

// startCredits starts publishing receives to the peer, after a grant. It does nothing for an SRQ, whose
// receives other QPs may use, or while GPU memory is registered, because its copies can fail.
func (q *qp) startCredits() {
	if q.srq == nil && q.nic.mrs.devices.Load() == nil {
		q.credited = true
		q.measureReceives(q.rq.ring.Len())
		q.publishCredit(q.rq.ring.Tail())
	}
}

// restartCredits restarts the count of receives after a reset.
func (s *lineState) restartCredits(tail uint32) { *s = lineState{base: tail, advertised: tail} }

// withdrawCredit revokes the credit of q at one neighbor.
func (b *neighbor) withdrawCredit(q *qp) {
	if b.ring != nil {
		b.own.Credit(q.num).Store(0)
		q.credited = slices.ContainsFunc(q.core.neighbors, func(b *neighbor) bool { return b.mayCredit(q) })
	}
}

// mayCredit reports whether the neighbor may send lines to q.
func (b *neighbor) mayCredit(q *qp) bool { return b.ring != nil && b.own.Grant(q.num).Load() != 0 }

// invalidateCredits sets the published length of all receives that may use region m to 0, and serves the rings.
// The caller is about to close m.
func (n *NIC) invalidateCredits(m *mr) {
	changed := false
	for q := range n.qps.all() {
		if q.pd != m.pd || q.shortest == 0 || q.rq.ring.Len() == 0 {
			continue
		}
		if q.shortest = 0; q.credited {
			changed = true
			q.publishCredit(q.advertised)
		}
	}
	if !changed {
		return
	}
	for _, b := range n.core.neighbors {
		if b.ring != nil {
			b.grace()
			b.ring.serveAll()
		}
	}
}
