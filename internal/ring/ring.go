// Package ring provides queues and windows in slices whose length is a power of two: a first-in, first-out queue, a bounded queue of
// datagrams, and values by sequence number.
package ring

import "math/bits"

// CeilPow2 returns the smallest power of two that is at least n, and at least 1.
func CeilPow2(n int) int { return 1 << bits.Len(uint(max(n, 1)-1)) }

// Ring is a queue. Every entry has a sequence number, counted from 0, that wraps. The slot of an
// entry is its number modulo the capacity, so At also finds an entry in the middle. Pushing to a
// full Ring doubles the capacity; a sufficiently large Ring never allocates. The zero value is an
// empty Ring without capacity.
type Ring[T any] struct {
	slots      []T
	head, tail uint32
}

// New returns an empty Ring for at least n entries.
func New[T any](n int) Ring[T] { return Ring[T]{slots: make([]T, CeilPow2(n))} }

// Len is the number of entries.
func (r *Ring[T]) Len() int { return int(r.tail - r.head) }

// Cap is the number of entries that fit without an allocation.
func (r *Ring[T]) Cap() int { return len(r.slots) }

// Head is the sequence number of the oldest entry.
func (r *Ring[T]) Head() uint32 { return r.head }

// Tail is the sequence number of the next entry to be pushed.
func (r *Ring[T]) Tail() uint32 { return r.tail }

// At returns the slot of a sequence number. It is valid until the next push.
func (r *Ring[T]) At(seq uint32) *T { return &r.slots[int(seq)&(len(r.slots)-1)] }

// Front returns the oldest entry. The Ring must not be empty.
func (r *Ring[T]) Front() *T { return r.At(r.head) }

// Full reports whether a push would allocate.
func (r *Ring[T]) Full() bool { return int(r.tail-r.head) == len(r.slots) }

// Push appends an entry. It allocates if the Ring is full.
func (r *Ring[T]) Push(v T) {
	if r.Full() {
		r.Grow()
	}
	*r.Extend() = v
}

// Extend appends an entry and returns its slot, which holds an earlier value until the caller
// fills it. The Ring must not be full. Extend is inlined, and Push is not.
func (r *Ring[T]) Extend() *T {
	slot := r.At(r.tail)
	r.tail++
	return slot
}

// Reserve grows the capacity to at least n entries.
func (r *Ring[T]) Reserve(n int) {
	for len(r.slots) < n {
		r.Grow()
	}
}

// Grow doubles the capacity. Entries keep their sequence numbers.
func (r *Ring[T]) Grow() {
	larger := Ring[T]{slots: make([]T, max(1, 2*len(r.slots))), head: r.head, tail: r.tail}
	for seq := r.head; seq != r.tail; seq++ {
		*larger.At(seq) = *r.At(seq)
	}
	*r = larger
}

// Pop removes the oldest entry, clears its slot and returns it. The Ring must not be empty.
func (r *Ring[T]) Pop() T {
	var zero T
	slot := r.Front()
	v := *slot
	*slot = zero
	r.head++
	return v
}

// Drop removes the oldest n entries and leaves their slots as they are.
func (r *Ring[T]) Drop(n int) { r.head += uint32(n) }

// Truncate removes the entries from seq on, which must be between Head and Tail.
func (r *Ring[T]) Truncate(seq uint32) { r.tail = seq }
