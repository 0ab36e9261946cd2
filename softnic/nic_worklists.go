package softnic

import (
	"ibverbx/internal/heap"
)

// listBits are the work lists that contain a QP, each at most once.
type listBits uint16

const (
	onAcks    listBits = 1 << iota // owes the peer an ACK
	onTx                           // may have data to send
	onLater                        // has used up its turn in this call
	onWatch                        // has unacknowledged packets, maybe without a timer
	onBroken                       // its CQ overran
	onFailing                      // a UC or UD QP with a failed receive
	onStarved                      // waits for a budget
	onWaiting                      // waits for space in the link's queue
	onStager                       // waits for a staging buffer
)

// workLists are the QPs of a link with pending work: see listBits.
type workLists struct{ acks, tx, later, watch, broken, failing workList }

func (l *workLists) init() {
	l.acks.bit, l.tx.bit, l.later.bit, l.watch.bit = onAcks, onTx, onLater, onWatch
	l.broken.bit, l.failing.bit = onBroken, onFailing
}

// busy reports whether a QP has work other than acknowledgements.
func (l *workLists) busy() bool {
	return !l.tx.empty() || !l.later.empty() || !l.watch.empty() || !l.broken.empty() || !l.failing.empty()
}

// workList is a queue of QPs. It keeps its backing array, so it stops allocating at its maximum length. It is
// hand-written because a post goes through two of them.
type workList struct {
	qps  []*qp
	head int
	// bit is set in qp.lists while a QP is on the list.
	bit listBits
}

// push adds q unless it is already on the list.
func (l *workList) push(q *qp) {
	if q.lists&l.bit == 0 {
		q.lists |= l.bit
		l.qps = append(l.qps, q)
	}
}

func (l *workList) empty() bool { return l.head == len(l.qps) }

// pop removes the oldest QP. It returns nil if the list is empty.
func (l *workList) pop() *qp {
	if l.head == len(l.qps) {
		return nil
	}
	q := l.qps[l.head]
	l.qps[l.head] = nil // a closed QP must not stay reachable
	l.head++
	if l.head == len(l.qps) {
		l.qps, l.head = l.qps[:0], 0
	}
	q.lists &^= l.bit
	return q
}

// timers holds QPs by the times of their timers. A QP is in it at most once, at index qp.timerIdx, which is -1
// otherwise.
type timers struct {
	heap.Heap[*qp]
}

func newTimers() timers {
	return timers{heap.Heap[*qp]{Moved: func(q *qp, i int) { q.timerIdx = i }}}
}

// set sets the timer of q.
func (t *timers) set(q *qp, at int64) {
	q.timerAt = at
	if q.timerIdx < 0 {
		t.Push(at, 0, q)
	} else {
		t.Move(q.timerIdx, at)
	}
}

// drop stops the timer of q, if it runs.
func (t *timers) drop(q *qp) {
	if q.timerIdx >= 0 {
		t.Remove(q.timerIdx)
	}
}
