package sim

import (
	"ibverbx/internal/clock"
	"ibverbx/internal/heap"
)

// never is a time that does not come.
const never = clock.Never

// agenda holds what happens at a time. At the same time, what was added first happens first.
type agenda struct {
	heap  heap.Heap[func()]
	count uint64
}

// next is the time of the first entry, never if there is none.
func (a *agenda) next() int64 { return a.heap.Next() }

// add enters a function. A nil one only makes time stop there.
func (a *agenda) add(at int64, do func()) {
	a.count++
	a.heap.Push(at, a.count, do)
}

// take removes the first entry that is due.
func (a *agenda) take(now int64) (do func(), ok bool) {
	if a.next() > now {
		return nil, false
	}
	return a.heap.Pop(), true
}
