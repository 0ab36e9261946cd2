package ibverbx

import "math/bits"

// laneSet is a set of lane indices, one bit each. Its size is fixed when it is made.
type laneSet []uint64

// newLaneSet returns an empty set for the indices below n.
func newLaneSet(n int) laneSet { return make(laneSet, (n+63)/64) }

func (s laneSet) add(lane uint16)      { s[lane>>6] |= 1 << (lane & 63) }
func (s laneSet) remove(lane uint16)   { s[lane>>6] &^= 1 << (lane & 63) }
func (s laneSet) has(lane uint16) bool { return s[lane>>6]&(1<<(lane&63)) != 0 }

// first returns the lowest index in the set, or -1 if the set is empty.
func (s laneSet) first() int {
	for i, w := range s {
		if w != 0 {
			return i<<6 + bits.TrailingZeros64(w)
		}
	}
	return -1
}

// moveTo moves all indices to another set of the same size, which must be empty, and returns how
// many there are.
func (s laneSet) moveTo(to laneSet) (n int) {
	for i, w := range s {
		n += bits.OnesCount64(w)
		to[i], s[i] = w, 0
	}
	return n
}
