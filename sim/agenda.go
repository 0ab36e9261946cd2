package sim

import (
	"ibverbx/internal/clock"
	"ibverbx/internal/heap"
)

// never is a time that does not come.
const never = clock.Never

// agenda holds functions by the time at which they are called. Functions with the same time are
// called in the order in which they were added.
type agenda struct {
	heap  heap.Heap[func()]
	count uint64 // functions added so far
}

// next is the time of the first function, never if there is none.
func (a *agenda) next() int64 { return a.heap.Next() }

// add adds a function. A nil function only makes time stop there.
func (a *agenda) add(at int64, do func()) {
	a.count++
	a.heap.Push(at, a.count, do)
}

// take removes the first function that is due.
func (a *agenda) take(now int64) (do func(), ok bool) {
	if a.next() > now {
		return nil, false
	}
	return a.heap.Pop(), true
}
