package softnic

import "iter"

// slots is a table of objects under 24-bit numbers. The low 16 bits of a number are the index, the
// high 8 a generation: a number repeats only after its index was used 256 times. It is hand-written
// because every packet looks up a QP: an index into a slice beats a hash table.
//
//	23      16 | 15       0
//	generation |    index
type slots[T comparable] struct {
	items []T
	// gens are the generations of the indices.
	gens []uint8
	// free are the released indices, oldest first.
	free []uint32
	// limit is the highest index.
	limit uint32
}

const (
	slotIndexBits = 16
	slotIndexMask = 1<<slotIndexBits - 1
)

// init makes first the lowest index and limit the highest.
func (s *slots[T]) init(first, limit uint32) {
	s.limit = limit
	s.items = make([]T, first)
	s.gens = make([]uint8, first)
}

// add returns the number of v, 0 if the table is full. It reuses released indices oldest first.
func (s *slots[T]) add(v T) uint32 {
	var i uint32
	switch {
	case uint32(len(s.items)) <= s.limit && (len(s.free) < reuseDelay):
		i = uint32(len(s.items))
		s.items = append(s.items, v)
		s.gens = append(s.gens, 0)
	case len(s.free) > 0:
		i = s.free[0]
		s.free = s.free[1:]
		s.items[i] = v
	default:
		return 0
	}
	return uint32(s.gens[i])<<slotIndexBits | i
}

// reuseDelay is how many indices must be free before one is used again, as long as there are fresh
// ones.
const reuseDelay = 64

// get returns the object under num, the zero value if there is none.
func (s *slots[T]) get(num uint32) T {
	i := num & slotIndexMask
	if i >= uint32(len(s.items)) || uint32(s.gens[i]) != num>>slotIndexBits {
		var zero T
		return zero
	}
	return s.items[i]
}

// remove releases num, which must be in use.
func (s *slots[T]) remove(num uint32) {
	var zero T
	i := num & slotIndexMask
	s.items[i] = zero
	s.gens[i]++
	s.free = append(s.free, i)
}

// all iterates over the objects in order of their index.
func (s *slots[T]) all() iter.Seq[T] {
	return func(yield func(T) bool) {
		var zero T
		for _, v := range s.items {
			if v != zero && !yield(v) {
				return
			}
		}
	}
}
