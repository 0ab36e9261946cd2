package softnic

import "testing"

// TestSlotsFull: a table gives out every number up to its limit once, then none, and
// after that only numbers that were given back, under another generation.
func TestSlotsFull(t *testing.T) {
	for _, limit := range []uint32{maxQP, maxAH} {
		var s slots[*int]
		s.init(1, limit)
		seen := make(map[uint32]bool)
		v := new(int)
		for range limit {
			num := s.add(v)
			if num == 0 || num > slotIndexMask || seen[num] {
				t.Fatalf("number %#x after %d others, want a new one of 16 bits", num, len(seen))
			}
			seen[num] = true
		}
		if num := s.add(v); num != 0 {
			t.Fatalf("a full table gave out %#x", num)
		}
		s.remove(77)
		if s.get(77) != nil {
			t.Error("a number that was given back still finds its object")
		}
		num := s.add(v)
		if num != 1<<slotIndexBits|77 {
			t.Errorf("next number = %#x, want the freed index in the next generation", num)
		}
		if s.get(num) != v || s.get(77) != nil {
			t.Error("the new number must find the object, and the old one not")
		}
	}
}

func TestSlotsUnknown(t *testing.T) {
	var s slots[*int]
	s.init(firstQPN, maxQP)
	for _, num := range []uint32{0, 1, firstQPN, firstQPN + 1, 1<<24 - 1, 1<<32 - 1} {
		if s.get(num) != nil {
			t.Errorf("get(%#x) of an empty table found something", num)
		}
	}
}
