package reliable

import (
	"testing"

	"pgregory.net/rapid"
)

// TestKeys compares the table of keys with a map, for keys that collide.
func TestKeys(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var k keys
		want := map[uint32]*region{}
		for range rapid.IntRange(1, 300).Draw(rt, "steps") {
			key := rapid.Uint32Range(0, 40).Draw(rt, "key") << rapid.SampledFrom([]int{0, 27}).Draw(rt, "shift")
			switch r := want[key]; {
			case r == nil && rapid.Bool().Draw(rt, "add"):
				want[key] = &region{lkey: key}
				k.add(key, want[key])
			case r != nil && rapid.Bool().Draw(rt, "remove"):
				k.remove(key, &region{}) // of another region: stays
				k.remove(key, r)
				delete(want, key)
			}
			for key, r := range want {
				if got := k.find(key); got != r {
					rt.Fatalf("key %#x finds %p, want %p", key, got, r)
				}
			}
			if k.used != len(want) || want[key] != k.find(key) {
				rt.Fatalf("%d keys, want %d; key %#x finds %p, want %p", k.used, len(want), key, k.find(key), want[key])
			}
		}
	})
}
