package chunk

import "sync/atomic"

// tablePage is the number of elements allocated at once.
const tablePage = 1024

// Table has an element for each chunk of a file. Elements are allocated on first use, so a peer
// cannot exhaust memory by announcing a huge file. Different elements may be used concurrently.
type Table[T any] struct {
	n     int64
	pages []atomic.Pointer[[]T]
}

// NewTable returns a Table of n zero elements.
func NewTable[T any](n int64) Table[T] {
	return Table[T]{n, make([]atomic.Pointer[[]T], (n+tablePage-1)/tablePage)}
}

// Len returns the number of elements.
func (t *Table[T]) Len() int64 { return t.n }

// At returns a pointer to element k, allocating it if needed.
func (t *Table[T]) At(k int64) *T {
	p := &t.pages[k/tablePage]
	page := p.Load()
	if page == nil {
		made := make([]T, min(t.n-k/tablePage*tablePage, tablePage))
		p.CompareAndSwap(nil, &made)
		page = p.Load()
	}
	return &(*page)[k%tablePage]
}

// Get returns element k. It does not allocate.
func (t *Table[T]) Get(k int64) (v T) {
	if page := t.pages[k/tablePage].Load(); page != nil {
		v = (*page)[k%tablePage]
	}
	return v
}
