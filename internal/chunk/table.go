package chunk

import "sync/atomic"

// tablePage is how many elements of a Table are made at a time.
const tablePage = 1024

// Table has an element for each chunk of a file. It makes those that are used, so a file takes no memory because a peer says that it is
// long. Different elements may be used at the same time, from any goroutine.
type Table[T any] struct {
	n     int64
	pages []atomic.Pointer[[]T]
}

// NewTable returns a Table of n elements that are zero.
func NewTable[T any](n int64) Table[T] {
	return Table[T]{n, make([]atomic.Pointer[[]T], (n+tablePage-1)/tablePage)}
}

// Len is the number of elements.
func (t *Table[T]) Len() int64 { return t.n }

// At returns element k to be changed.
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

// Get returns element k. It makes none.
func (t *Table[T]) Get(k int64) (v T) {
	if page := t.pages[k/tablePage].Load(); page != nil {
		v = (*page)[k%tablePage]
	}
	return v
}
