package softnic

import "ibverbx/internal/heap"

// timers holds QPs by the time at which their timers fire. A QP is in it at most once, at index
// qp.timerIdx. Index -1 means that it is not.
type timers struct {
	heap.Heap[*qp]
}

func newTimers() timers {
	return timers{heap.Heap[*qp]{Moved: func(q *qp, i int) { q.timerIdx = i }}}
}

// set makes the timer of q fire at a time.
func (t *timers) set(q *qp, at int64) {
	q.timerAt = at
	if q.timerIdx < 0 {
		t.Push(at, 0, q)
	} else {
		t.Move(q.timerIdx, at)
	}
}

// drop stops the timer of q if it runs.
func (t *timers) drop(q *qp) {
	if q.timerIdx >= 0 {
		t.Remove(q.timerIdx)
	}
}
