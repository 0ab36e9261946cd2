package softnic

import (
	"cmp"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
)

// slots is a table of objects with random 24-bit numbers. A number is redrawn until its low bits select
// a free slot. At least half of the slots are free, so a lookup indexes a slice once, which beats a
// hash table. It is hand-written because every packet looks up a QP. Numbers still select different
// slots after the table has grown.
type slots[T comparable] struct {
	// items has a power-of-two length.
	items []slot[T]
	rng   *rand.Rand
	// first is the lowest number. The highest is groupQPN-1.
	first uint32
	// used is the number of occupied slots, at most limit.
	used, limit int
	// added counts the objects ever added.
	added uint64
	// released holds the most recently released numbers, which are not reused yet.
	released [reuseDelay]uint32
	// releases counts the numbers ever released.
	releases int
}

type slot[T comparable] struct {
	// num is the item's number, 0 if the slot is free.
	num  uint32
	item T
	// age orders items by insertion.
	age uint64
}

const (
	slotBits = 24
	// minSlots is the initial table size.
	minSlots = 16
	// reuseDelay is the number of other releases before a number may be reused.
	reuseDelay = 1024
)

// init makes an empty table for up to limit objects, numbered from first.
func (s *slots[T]) init(rng *rand.Rand, first uint32, limit int) {
	s.rng, s.first, s.limit = rng, first, limit
	s.items = make([]slot[T], minSlots)
}

func (s *slots[T]) at(num uint32) *slot[T] { return &s.items[num&uint32(len(s.items)-1)] }

// add stores v and returns its number, 0 if the table is full.
func (s *slots[T]) add(v T) uint32 {
	if s.used == s.limit {
		return 0
	}
	if 2*s.used >= len(s.items) {
		old := s.items
		s.items = make([]slot[T], 2*len(old))
		for _, o := range old {
			if o.num != 0 {
				*s.at(o.num) = o
			}
		}
	}
	num := uint32(0)
	for num < s.first || num == groupQPN || s.at(num).num != 0 || slices.Contains(s.released[:], num) {
		num = s.rng.Uint32() >> (32 - slotBits)
	}
	s.used++
	s.added++
	*s.at(num) = slot[T]{num: num, item: v, age: s.added}
	return num
}

// get returns the object with number num, or the zero value.
func (s *slots[T]) get(num uint32) T {
	if o := s.at(num); o.num == num {
		return o.item // the zero value under number 0
	}
	var zero T
	return zero
}

// remove releases num, which must be in use.
func (s *slots[T]) remove(num uint32) {
	*s.at(num) = slot[T]{}
	s.used--
	s.released[s.releases%reuseDelay] = num
	s.releases++
}

// all iterates over the objects in insertion order.
func (s *slots[T]) all() iter.Seq[T] {
	return func(yield func(T) bool) {
		var found []slot[T]
		for _, o := range s.items {
			if o.num != 0 {
				found = append(found, o)
			}
		}
		slices.SortFunc(found, func(a, b slot[T]) int { return cmp.Compare(a.age, b.age) })
		for _, o := range found {
			if !yield(o.item) {
				return
			}
		}
	}
}

// creationOrder is the set of objects that depend on another one. They are destroyed in creation order, so
// that the same calls always lead to the same state.
type creationOrder[T comparable] struct {
	// born maps each object to its position in creation order.
	born  map[T]uint64
	count uint64
}

func (f *creationOrder[T]) add(v T) {
	if f.born == nil {
		f.born = make(map[T]uint64)
	}
	f.count++
	f.born[v] = f.count
}

func (f *creationOrder[T]) remove(v T) { delete(f.born, v) }

func (f *creationOrder[T]) len() int { return len(f.born) }

// inOrder returns the objects in creation order.
func (f *creationOrder[T]) inOrder() []T {
	return slices.SortedFunc(maps.Keys(f.born), func(a, b T) int { return int(f.born[a]) - int(f.born[b]) })
}
