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

// What a partner says of itself is printed, so it must be harmless.
func TestNotesRefused(t *testing.T) {
	good := note{Kind: noteOver, Over: &over{Messages: 5, Lanes: []Lane{{Role: "data"}, {Lane: 1, Role: "message"}}}}
	if err := good.check(); err != nil {
		t.Errorf("a good note: got %v, want no error", err)
	}
	for name, n := range map[string]note{
		"an unknown kind":     {Kind: "jump"},
		"over without result": {Kind: noteOver},
		"a result too early":  {Kind: noteDone, Over: &over{}},
		"less than nothing":   {Kind: noteDone, N: -1},
		"more than there is":  {Kind: noteCompare, First: 1 << 62, N: 1 << 62},
		"a role":              {Kind: noteOver, Over: &over{Lanes: []Lane{{Role: "\x1b[2J"}}}},
		"a lane":              {Kind: noteOver, Over: &over{Lanes: []Lane{{Lane: 7, Role: "data"}}}},
		"a rail":              {Kind: noteOver, Over: &over{Lanes: []Lane{{Rail: 8, Role: "data"}}}},
		"a time":              {Kind: noteOver, Over: &over{Elapsed: -1}},
	} {
		if err := n.check(); err == nil {
			t.Errorf("%s: got no error, want one", name)
		}
	}
	for name, h := range map[string]hostInfo{
		"no device": {}, "a device": {Devices: []string{"a\x1bb"}}, "a long device": {Devices: []string{string(make([]byte, 65))}}, "nine": {Devices: make([]string, 9)},
	} {
		if err := h.check(); err == nil {
			t.Errorf("%s: got no error, want one", name)
		}
	}
}
