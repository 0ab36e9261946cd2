// Package heap provides a priority queue by time.
package heap

import "math"

// Heap is a binary heap of values by time and, for equal times, by order. Times are stored beside
// the values, so that comparisons do not follow pointers. The zero value is an empty Heap.
type Heap[T any] struct {
	// Moved, if not nil, is called with a value's new index, or -1 when the value is removed. Move
	// and Remove take that index.
	Moved func(value T, index int)
	items []item[T]
}

type item[T any] struct {
	at    int64
	order uint64
	value T
}

func (i *item[T]) before(j *item[T]) bool { return i.at < j.at || (i.at == j.at && i.order < j.order) }

// Len is the number of values.
func (h *Heap[T]) Len() int { return len(h.items) }

// Next is the time of the first value, or math.MaxInt64 if the Heap is empty.
func (h *Heap[T]) Next() int64 {
	if len(h.items) == 0 {
		return math.MaxInt64
	}
	return h.items[0].at
}

// Front returns the first value. The Heap must not be empty.
func (h *Heap[T]) Front() T { return h.items[0].value }

// Push adds a value.
func (h *Heap[T]) Push(at int64, order uint64, value T) {
	h.items = append(h.items, item[T]{})
	h.up(len(h.items)-1, item[T]{at, order, value})
}

// Pop removes the first value and returns it. The Heap must not be empty.
func (h *Heap[T]) Pop() T {
	v := h.items[0].value
	h.Remove(0)
	return v
}

// Move changes the time of the value at index i.
func (h *Heap[T]) Move(i int, at int64) {
	it := h.items[i]
	it.at = at
	h.place(i, it)
}

// Remove removes the value at index i.
func (h *Heap[T]) Remove(i int) {
	n := len(h.items) - 1
	gone, last := h.items[i].value, h.items[n]
	h.items[n] = item[T]{}
	h.items = h.items[:n]
	if i < n {
		h.place(i, last)
	}
	h.moved(gone, -1)
}

// place stores an item in the hole at i, or moves it down to its position.
func (h *Heap[T]) place(i int, it item[T]) {
	for {
		child := 2*i + 1
		if child >= len(h.items) {
			break
		}
		if child+1 < len(h.items) && h.items[child+1].before(&h.items[child]) {
			child++
		}
		if !h.items[child].before(&it) {
			break
		}
		h.put(i, h.items[child])
		i = child
	}
	h.up(i, it)
}

// up stores an item in the hole at i, or above it.
func (h *Heap[T]) up(i int, it item[T]) {
	for i > 0 {
		parent := (i - 1) / 2
		if !it.before(&h.items[parent]) {
			break
		}
		h.put(i, h.items[parent])
		i = parent
	}
	h.put(i, it)
}

func (h *Heap[T]) put(i int, it item[T]) {
	h.items[i] = it
	h.moved(it.value, i)
}

func (h *Heap[T]) moved(value T, i int) {
	if h.Moved != nil {
		h.Moved(value, i)
	}
}
