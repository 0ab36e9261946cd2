package ring

// Window holds values by sequence number, from a base that the user advances. Numbers wrap. It
// grows with the distance of the numbers from the base, up to a limit. Values must be zero when
// they leave the window.
type Window[T any] struct {
	slots []T
	limit uint32
}

// NewWindow returns a Window for the numbers base to base+limit-1, with space for few of them. It rounds both up to a power of two.
func NewWindow[T any](few, limit int) Window[T] {
	limit = CeilPow2(limit)
	return Window[T]{slots: make([]T, min(CeilPow2(few), limit)), limit: uint32(limit)}
}

// Len is the number of values that fit without an allocation.
func (w *Window[T]) Len() int { return len(w.slots) }

// Limit is the maximum number of values.
func (w *Window[T]) Limit() uint32 { return w.limit }

// At returns the value of a number that Reach has reported as inside the window, or that is less
// than Len ahead of the base.
func (w *Window[T]) At(seq uint32) *T { return &w.slots[int(seq)&(len(w.slots)-1)] }

// Reach reports whether the number ahead of base by the given distance is inside the window. It
// allocates if that number needs more space.
func (w *Window[T]) Reach(base, ahead uint32) bool {
	if ahead < uint32(len(w.slots)) {
		return true
	}
	return w.grow(base, ahead)
}

func (w *Window[T]) grow(base, ahead uint32) bool {
	if ahead >= w.limit {
		return false
	}
	larger := Window[T]{slots: make([]T, CeilPow2(int(ahead)+1)), limit: w.limit}
	for i := range uint32(len(w.slots)) {
		*larger.At(base + i) = *w.At(base + i)
	}
	*w = larger
	return true
}
