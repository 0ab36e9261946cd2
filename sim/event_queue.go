package sim

import (
	"ibverbx/internal/clock"
	"ibverbx/internal/heap"
)

// never is later than every time.
const never = clock.Never

// eventQueue holds functions by time. Functions with equal times run in insertion order.
type eventQueue struct {
	heap  heap.Heap[func()]
	count uint64 // functions added so far
}

// next is the time of the first function, never if the queue is empty.
func (a *eventQueue) next() int64 { return a.heap.Next() }

// add adds a function. A nil function only stops a jump of time there.
func (a *eventQueue) add(at int64, do func()) {
	a.count++
	a.heap.Push(at, a.count, do)
}

// take removes the first function that is due.
func (a *eventQueue) take(now int64) (do func(), ok bool) {
	if a.next() > now {
		return nil, false
	}
	return a.heap.Pop(), true
}
