package softnic

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestSlots: a table gives every object a unique 24-bit number, which finds it until it is released, even
// after the table has grown. A full table returns 0.
func TestSlots(t *testing.T) {
	const limit = 1000
	var s slots[*int]
	s.init(newRand(7), firstQPN, limit)
	var order []*int
	nums := map[uint32]*int{}
	for range limit {
		v := new(int)
		num := s.add(v)
		if num < firstQPN || num >= 1<<24 || nums[num] != nil {
			t.Fatalf("number %#x after %d others, want a new one of 24 bits", num, len(nums))
		}
		nums[num] = v
		order = append(order, v)
	}
	if num := s.add(new(int)); num != 0 {
		t.Fatalf("a full table gave out %#x", num)
	}
	for num, v := range nums {
		if s.get(num) != v || s.get(num^1<<23) == v || s.get(num|1<<24) != nil {
			t.Fatalf("number %#x does not find its object, or another does", num)
		}
	}
	if got := slices.Collect(s.all()); !slices.Equal(got, order) {
		t.Error("all does not go in the order of addition")
	}
	for num := range nums {
		s.remove(num)
		if s.get(num) != nil {
			t.Fatalf("%#x still finds its object after its release", num)
		}
		v := new(int)
		next := s.add(v)
		if next == num || s.get(next) != v {
			t.Fatalf("the next number is %#x, want another than %#x that finds its object", next, num)
		}
		s.remove(next)
	}
}

// TestSlotsAreRandom: numbers are unpredictable across tables, and all their bits vary.
func TestSlotsAreRandom(t *testing.T) {
	var a, b slots[*int]
	a.init(newRand(0), firstQPN, maxQP)
	b.init(newRand(0), firstQPN, maxQP)
	same, set, clear := 0, uint32(0), uint32(0)
	for range 64 {
		x, y := a.add(new(int)), b.add(new(int))
		if x == y {
			same++
		}
		set |= x
		clear |= ^x
	}
	if same > 2 || set != 1<<24-1 || clear&(1<<24-1) != 1<<24-1 {
		t.Errorf("%d of 64 numbers are the same in two tables, bits %#x were set and %#x clear, want all of 24 bits to vary", same, set, clear)
	}
}

// drawn is a source of given numbers.
type drawn []uint32

func (d *drawn) Uint64() uint64 {
	n := (*d)[0]
	*d = (*d)[1:]
	return uint64(n) << 32
}

// TestSlotsReserved: no object gets the number that names multicast groups, or one below the first.
func TestSlotsReserved(t *testing.T) {
	var s slots[*int]
	s.init(rand.New(&drawn{groupQPN << 8, 0, (firstQPN - 1) << 8, firstQPN << 8}), firstQPN, maxQP)
	if num := s.add(new(int)); num != firstQPN {
		t.Errorf("number = %#x, want %#x", num, firstQPN)
	}
}

func TestSlotsUnknown(t *testing.T) {
	var s slots[*int]
	s.init(newRand(1), firstQPN, maxQP)
	for _, num := range []uint32{0, 1, firstQPN, firstQPN + 1, 1<<24 - 1, 1<<32 - 1} {
		if s.get(num) != nil {
			t.Errorf("get(%#x) of an empty table found something", num)
		}
	}
}
