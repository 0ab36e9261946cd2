package ring_test

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"ibverbx/internal/ring"
)

func TestCeilPow2(t *testing.T) {
	for n, want := range map[int]int{-1: 1, 0: 1, 1: 1, 2: 2, 3: 4, 4: 4, 5: 8, 1 << 20: 1 << 20, 1<<20 + 1: 1 << 21} {
		if got := ring.CeilPow2(n); got != want {
			t.Errorf("CeilPow2(%d) = %d, want %d", n, got, want)
		}
	}
}

// A Ring behaves like a slice, for any capacity and any sequence numbers.
func TestRing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := ring.New[int](rapid.IntRange(0, 9).Draw(t, "capacity"))
		if rapid.Bool().Draw(t, "wraps") {
			r.Drop(math.MaxUint32 - 5)
			r.Truncate(r.Head())
		}
		var model []int
		next := 0
		t.Repeat(map[string]func(*rapid.T){
			"push": func(*rapid.T) {
				next++
				r.Push(next)
				model = append(model, next)
			},
			"extend": func(t *rapid.T) {
				if r.Full() {
					t.Skip("full")
				}
				next++
				*r.Extend() = next
				model = append(model, next)
			},
			"pop": func(t *rapid.T) {
				if len(model) == 0 {
					t.Skip("empty")
				}
				front := *r.Front()
				if got := r.Pop(); got != model[0] || front != got {
					t.Fatalf("Front = %d, Pop = %d, want %d", front, got, model[0])
				}
				model = model[1:]
			},
			"drop": func(t *rapid.T) {
				n := rapid.IntRange(0, len(model)).Draw(t, "n")
				r.Drop(n)
				model = model[n:]
			},
			"truncate": func(t *rapid.T) {
				n := rapid.IntRange(0, len(model)).Draw(t, "n")
				r.Truncate(r.Head() + uint32(n))
				model = model[:n]
			},
			"": func(t *rapid.T) {
				var got []int
				for seq := r.Head(); seq != r.Tail(); seq++ {
					got = append(got, *r.At(seq))
				}
				if !slices.Equal(got, model) || r.Len() != len(model) || r.Cap() != ring.CeilPow2(r.Cap()) || r.Cap() < r.Len() || r.Full() != (r.Len() == r.Cap()) {
					t.Fatalf("got %v, Len %d, Cap %d, want %v", got, r.Len(), r.Cap(), model)
				}
			},
		})
	})
}

func TestRingClears(t *testing.T) {
	r := ring.New[*int](1)
	r.Push(new(int))
	seq := r.Head()
	if v := r.Pop(); v == nil || *r.At(seq) != nil {
		t.Errorf("Pop = %v and leaves %v, want the entry and nil", v, *r.At(seq))
	}
}

func TestRingAllocations(t *testing.T) {
	r := ring.New[int](4)
	if n := testing.AllocsPerRun(100, func() {
		for i := range 4 {
			r.Push(i)
		}
		r.Pop()
		r.Drop(3)
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
	var empty ring.Ring[int]
	empty.Push(7)
	if v := empty.Pop(); v != 7 {
		t.Errorf("Pop = %d, want 7", v)
	}
}
