// Package u32map provides a hash table from 32-bit numbers, such as QP numbers and memory keys.
// It is faster than a map and never allocates in a lookup.
package u32map

import "slices"

// Map maps numbers to values by open addressing with linear probing. It is at most half full, so a
// lookup probes only a few slots. The zero value is an empty table.
type Map[V any] struct {
	slots []slot[V]
	count int
}

type slot[V any] struct {
	key   uint32
	used  bool
	value V
}

// minSlots is the size of a table with one entry.
const minSlots = 8

// home spreads consecutive numbers: QP numbers and keys are usually handed out in order.
func (t *Map[V]) home(key uint32) int { return int(key*0x9e3779b1>>8) & (len(t.slots) - 1) }

// Len is the number of entries.
func (t *Map[V]) Len() int { return t.count }

// Find returns the value of key, or the zero value if key is absent.
func (t *Map[V]) Find(key uint32) (value V) {
	if t.count == 0 {
		return value
	}
	if s := t.slot(key); s.used {
		return s.value
	}
	return value
}

// slot returns the slot that holds key, or the free slot for it. The table must have slots.
func (t *Map[V]) slot(key uint32) *slot[V] {
	slots := t.slots
	for i := t.home(key); ; i++ {
		s := &slots[i&(len(slots)-1)]
		if s.key == key || !s.used {
			return s
		}
	}
}

// Set stores value under key.
func (t *Map[V]) Set(key uint32, value V) {
	if 2*(t.count+1) > len(t.slots) {
		t.rebuild(max(minSlots, 2*len(t.slots)), nil)
	}
	s := t.slot(key)
	if !s.used {
		t.count++
	}
	*s = slot[V]{key, true, value}
}

// Delete removes key, if present. Later entries move up.
func (t *Map[V]) Delete(key uint32) {
	if t.count == 0 {
		return
	}
	mask := len(t.slots) - 1
	i := t.home(key)
	for t.slots[i].key != key || !t.slots[i].used {
		if !t.slots[i].used {
			return
		}
		i = (i + 1) & mask
	}
	t.slots[i] = slot[V]{}
	t.count--
	for i = (i + 1) & mask; t.slots[i].used; i = (i + 1) & mask {
		s := t.slots[i]
		t.slots[i] = slot[V]{}
		*t.slot(s.key) = s
	}
}

// DeleteFunc removes the entries for which del returns true. It allocates.
func (t *Map[V]) DeleteFunc(del func(key uint32, value V) bool) { t.rebuild(len(t.slots), del) }

// rebuild moves the entries to a table of n slots, except those for which del returns true.
func (t *Map[V]) rebuild(n int, del func(uint32, V) bool) {
	old := t.slots
	t.slots, t.count = make([]slot[V], n), 0
	for _, s := range old {
		if s.used && (del == nil || !del(s.key, s.value)) {
			*t.slot(s.key) = s
			t.count++
		}
	}
}

// Clone returns a copy of the table.
func (t *Map[V]) Clone() Map[V] {
	return Map[V]{slots: slices.Clone(t.slots), count: t.count}
}
