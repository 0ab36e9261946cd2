package u32map_test

import (
	"maps"
	"testing"

	"pgregory.net/rapid"

	"ibverbx/internal/u32map"
)

// A Map behaves like a Go map. Few distinct keys are used, so that they repeat. Multiples of 2^27
// all have the same home, so they collide.
func TestMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var tab u32map.Map[int]
		model := map[uint32]int{}
		key := rapid.OneOf(rapid.Uint32Range(0, 40), rapid.Map(rapid.Uint32Range(0, 20), func(i uint32) uint32 { return i << 27 }))
		next := 0
		t.Repeat(map[string]func(*rapid.T){
			"set": func(t *rapid.T) {
				next++
				k := key.Draw(t, "key")
				tab.Set(k, next)
				model[k] = next
			},
			"delete": func(t *rapid.T) {
				k := key.Draw(t, "key")
				tab.Delete(k)
				delete(model, k)
			},
			"delete some": func(t *rapid.T) {
				n := rapid.IntRange(2, 5).Draw(t, "n")
				tab.DeleteFunc(func(k uint32, v int) bool { return (int(k)+v)%n == 0 })
				maps.DeleteFunc(model, func(k uint32, v int) bool { return (int(k)+v)%n == 0 })
			},
			"clone": func(*rapid.T) {
				old := tab
				tab = tab.Clone()
				for k := range model {
					old.Set(k, -1) // usually in place
				}
			},
			"find": func(t *rapid.T) {
				if k := key.Draw(t, "key"); tab.Find(k) != model[k] {
					t.Fatalf("Find(%#x) = %d, want %d", k, tab.Find(k), model[k])
				}
			},
			"": func(t *rapid.T) {
				for k, want := range model {
					if got := tab.Find(k); got != want {
						t.Fatalf("Find(%#x) = %d, want %d", k, got, want)
					}
				}
				if tab.Len() != len(model) {
					t.Fatalf("Len = %d, want %d", tab.Len(), len(model))
				}
			},
		})
	})
}

func TestTableAllocations(t *testing.T) {
	var tab u32map.Map[*int]
	for k := range uint32(100) {
		tab.Set(k, new(int))
	}
	if n := testing.AllocsPerRun(100, func() {
		v := tab.Find(7)
		tab.Delete(7)
		tab.Set(7, v)
	}); n != 0 || tab.Find(7) == nil || tab.Find(100) != nil {
		t.Errorf("%v allocations, Find(7) = %v, Find(100) = %v, want 0, a value and nil", n, tab.Find(7), tab.Find(100))
	}
}
