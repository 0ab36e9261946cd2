package heap_test

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"ibverbx/internal/heap"
)

// entry records its index, as a timer does to be moved and removed.
type entry struct {
	at    int64
	order uint64
	index int
}

// A Heap yields values in sorted order, and every value has the right index.
func TestHeap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := heap.Heap[*entry]{Moved: func(e *entry, i int) { e.index = i }}
		var model []*entry
		when := rapid.Int64Range(0, 8)
		order := uint64(0)
		first := func() int64 {
			at := int64(math.MaxInt64)
			for _, e := range model {
				at = min(at, e.at)
			}
			return at
		}
		forget := func(e *entry) {
			i := slices.Index(model, e)
			if i < 0 || e.index != -1 {
				t.Fatalf("removed %+v, want an entry of the heap with index -1", e)
			}
			model = slices.Delete(model, i, i+1)
		}
		some := func(t *rapid.T) *entry {
			if len(model) == 0 {
				t.Skip("empty")
			}
			return rapid.SampledFrom(model).Draw(t, "entry")
		}
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				order++
				e := &entry{at: when.Draw(t, "at"), order: order, index: -1}
				model = append(model, e)
				h.Push(e.at, e.order, e)
			},
			"pop": func(t *rapid.T) {
				some(t)
				want := slices.MinFunc(model, func(a, b *entry) int { return int(8*(a.at-b.at)*int64(order) + 8*int64(a.order-b.order)) })
				front, got := h.Front(), h.Pop()
				if front != got || got != want {
					t.Fatalf("Front = %+v, Pop = %+v, want %+v", front, got, want)
				}
				forget(got)
			},
			"move": func(t *rapid.T) {
				e := some(t)
				e.at = when.Draw(t, "at")
				h.Move(e.index, e.at)
			},
			"remove": func(t *rapid.T) {
				e := some(t)
				h.Remove(e.index)
				forget(e)
			},
			"": func(t *rapid.T) {
				seen := make([]bool, len(model))
				for _, e := range model {
					if e.index < 0 || e.index >= len(model) || seen[e.index] {
						t.Fatalf("index %d of %d is impossible or taken", e.index, len(model))
					}
					seen[e.index] = true
				}
				if h.Len() != len(model) || h.Next() != first() {
					t.Fatalf("Len = %d, Next = %d, want %d, %d", h.Len(), h.Next(), len(model), first())
				}
			},
		})
	})
}

func TestHeapAllocations(t *testing.T) {
	var h heap.Heap[int]
	for i := range 64 {
		h.Push(int64(i), 0, i)
	}
	if n := testing.AllocsPerRun(100, func() { h.Push(h.Next()+64, 0, h.Pop()) }); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}
