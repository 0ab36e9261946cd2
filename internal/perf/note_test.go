package perf

import (
	"encoding/json"
	"testing"
)

// Whatever a partner says is refused, or makes sense and is written just so.
func FuzzNote(f *testing.F) {
	for _, v := range []any{
		&note{Kind: noteStart}, &note{Kind: noteCompare, First: 3, N: 4}, &note{Kind: noteOver, Over: &over{Messages: 5, Lanes: []Lane{{Role: "data"}}}},
		specOf(&Config{Op: Write, Mode: Bandwidth, Iterations: 5, Rails: 2, QPs: 8}, []int{8, 64}),
		hostInfo{Devices: []string{"soft0"}, Reads: 16},
	} {
		b, err := json.Marshal(v)
		if err != nil {
			f.Fatalf("Marshal: got %v, want no error", err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var n note
		if decodeNote(b, &n) == nil && n.check() == nil && (n.First < 0 || n.N < 0 || n.First+n.N < 0) {
			t.Errorf("%s is taken, and makes no sense", b)
		}
		var h hostInfo
		if decodeNote(b, &h) == nil {
			_ = h.check()
		}
		var s spec
		if decodeNote(b, &s) != nil {
			return
		}
		c, err := s.config()
		if err != nil {
			return
		}
		for _, size := range c.Sizes {
			p := newPlan(&c, size, maxRequests)
			if n := max(p.endBytes(0), p.endBytes(1)); n > remoteBytes || n < 0 || p.depth() > maxRequests {
				t.Errorf("%s makes an end of %d bytes with %d requests in flight", b, n, p.depth())
			}
		}
	})
}
