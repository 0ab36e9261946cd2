//go:build linux && cgo && (amd64 || arm64)

package main

import (
	"sync"
	"sync/atomic"
)

// table maps the object numbers of C to objects. Lookups do not lock. The zero value is an empty table.
type table[T any] struct {
	// mu guards changes.
	mu   sync.Mutex
	free []uint32
	used uint32
	// items is replaced by a larger copy when it is full.
	items atomic.Pointer[[]atomic.Pointer[T]]
}

// add returns the number of v, which is above 0.
func (t *table[T]) add(v *T) uint32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	var n uint32
	if last := len(t.free) - 1; last >= 0 {
		n, t.free = t.free[last], t.free[:last]
	} else {
		t.used++
		n = t.used
	}
	items := t.items.Load()
	if items == nil || int(n) >= len(*items) {
		larger := make([]atomic.Pointer[T], 2*n+14)
		for i := uint32(0); items != nil && i < n; i++ {
			larger[i].Store((*items)[i].Load())
		}
		items = &larger
		t.items.Store(items)
	}
	(*items)[n].Store(v)
	return n
}

// get returns the object with number n, or nil.
func (t *table[T]) get(n uint32) *T {
	items := t.items.Load()
	if items == nil || int(n) >= len(*items) {
		return nil
	}
	return (*items)[n].Load()
}

// remove releases an object's number.
func (t *table[T]) remove(n uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	(*t.items.Load())[n].Store(nil)
	t.free = append(t.free, n)
}

// find returns the first object that matches, or nil.
func (t *table[T]) find(match func(*T) bool) *T {
	if items := t.items.Load(); items != nil {
		for i := range *items {
			if v := (*items)[i].Load(); v != nil && match(v) {
				return v
			}
		}
	}
	return nil
}
