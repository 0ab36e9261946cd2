package nullnic

import "ibverbx/verbs"

// receives is the receive queue of a QP or an SRQ. The elements from head on are posted.
type receives struct {
	queue []verbs.RecvWR
	head  int
	max   int
}

func (r *receives) waiting() []verbs.RecvWR { return r.queue[r.head:] }

// post accepts receives until the queue is full.
func (r *receives) post(wrs []verbs.RecvWR) (int, error) {
	n := max(min(r.max-len(r.waiting()), len(wrs)), 0)
	if len(r.queue)+n > cap(r.queue) {
		r.queue, r.head = r.queue[:copy(r.queue, r.waiting())], 0
	}
	r.queue = append(r.queue, wrs[:n]...)
	if n < len(wrs) {
		return n, verbs.ErrQueueFull
	}
	return n, nil
}

// take removes the oldest receive, which is valid until the next post.
func (r *receives) take() *verbs.RecvWR {
	r.head++
	return &r.queue[r.head-1]
}

// Waiting returns the posted receives of the QP or its SRQ, oldest first.
func (q *QP) Waiting() []verbs.RecvWR { return q.pool.waiting() }

// Receive completes the oldest posted receive with wc, and fills in WRID and QPN. It returns false
// if the queue is empty; the sender would get an RNR NAK.
func (q *QP) Receive(wc verbs.WC) bool { return q.Deliver(wc, nil) }

// Deliver is Receive with a payload for the receive's buffers. It does not change wc.ByteLen. It
// panics if the payload does not fit, which is a bug in the test or in the engine.
func (q *QP) Deliver(wc verbs.WC, payload []byte) bool {
	if len(q.pool.waiting()) == 0 {
		return false
	}
	wr := q.pool.take()
	if len(payload) > 0 && !q.nic.scatter(wr.SGE[:wr.NumSGE], payload) {
		panic("ibverbx/internal/nullnic: the payload does not fit the receive")
	}
	wc.WRID, wc.QPN = wr.WRID, q.num
	*q.recvs.push() = wc
	q.low()
	return true
}

// FailRecv fails the oldest posted receive with a status and moves the QP to ERR, which flushes
// everything else.
func (q *QP) FailRecv(status verbs.Status) {
	if len(q.pool.waiting()) > 0 {
		failWC(q.recvs.push(), q.pool.take().WRID, status, q.num)
	}
	q.keepLate()
	q.flush()
}

// flushRecvs flushes the QP's own receives. An SRQ is not affected.
func (q *QP) flushRecvs() {
	for len(q.own.waiting()) > 0 {
		failWC(q.recvs.push(), q.own.take().WRID, verbs.StatusWRFlushErr, q.num)
	}
}

// PostRecv implements verbs.QP.
func (q *QP) PostRecv(wrs []verbs.RecvWR) (int, error) {
	if q.cfg.SRQ != nil {
		return 0, verbs.ErrInvalid
	}
	if q.state == verbs.StateReset {
		return 0, verbs.ErrState
	}
	q.own.max = q.cfg.MaxRecvWR
	n, err := q.own.post(wrs)
	if q.state == verbs.StateErr {
		q.flushRecvs()
	}
	return n, err
}
