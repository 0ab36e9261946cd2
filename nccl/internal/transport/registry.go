package transport

import (
	"slices"
	"sync"
	"sync/atomic"
)

// registry numbers objects for C, starting at 1. get takes one atomic load.
type registry[T any] struct {
	mu   sync.Mutex // guards changes
	all  atomic.Pointer[[]*T]
	free []uint32
}

func (r *registry[T]) add(v *T) uint32 {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []*T
	if old := r.all.Load(); old != nil {
		all = slices.Clone(*old)
	}
	var n uint32
	if k := len(r.free); k > 0 {
		n, r.free = r.free[k-1], r.free[:k-1]
		all[n-1] = v
	} else {
		all = append(all, v)
		n = uint32(len(all))
	}
	r.all.Store(&all)
	return n
}

// get returns nil for an unknown number.
func (r *registry[T]) get(n uint32) *T {
	all := r.all.Load()
	if all == nil || n == 0 || int(n) > len(*all) {
		return nil
	}
	return (*all)[n-1]
}

// remove returns nil for an unknown number.
func (r *registry[T]) remove(n uint32) *T {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := r.get(n)
	if v == nil {
		return nil
	}
	all := slices.Clone(*r.all.Load())
	all[n-1] = nil
	r.free = append(r.free, n)
	r.all.Store(&all)
	return v
}
