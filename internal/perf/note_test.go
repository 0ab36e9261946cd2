package perf

import (
	"encoding/json"
	"strings"
	"testing"
)

// A text is cut between letters: half of one would be refused as a note.
func TestBriefText(t *testing.T) {
	for _, text := range []string{"short", strings.Repeat("x", maxTextBytes-1) + "é and more", "\xff broken"} {
		b, err := json.Marshal(&note{Kind: noteAnswer, Text: brief(text)})
		if err != nil {
			t.Fatalf("Marshal: got %v, want no error", err)
		}
		var n note
		if err := decodeNote(b, &n); err != nil || n.check() != nil || n.Text == "" {
			t.Errorf("%.20q: got %q, %v and %v, want a note that the partner takes", text, n.Text, err, n.check())
		}
	}
}

// Whatever a partner says is refused, or makes sense and is written just so.
func FuzzNote(f *testing.F) {
	for _, v := range []any{
		&note{Kind: noteStart}, &note{Kind: noteCompare, First: 3, N: 4}, &note{Kind: noteDone, N: 4, Stop: true}, &note{Kind: noteOver, Over: &outcome{Messages: 5, Lanes: []Lane{{Role: "data"}}}},
		specOf(&Config{Op: Write, Mode: Bandwidth, Iterations: 5, Rails: 2, QPs: 8, Impair: []Impair{{Rail: 1, Loss: 0.01}}}, []int{8, 64}),
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
	good := note{Kind: noteOver, Over: &outcome{Messages: 5, Lanes: []Lane{{Role: "data"}, {Lane: 1, Role: "message"}}}}
	if err := good.check(); err != nil {
		t.Errorf("a good note: got %v, want no error", err)
	}
	for name, n := range map[string]note{
		"an unknown kind":     {Kind: "jump"},
		"over without result": {Kind: noteOver},
		"a result too early":  {Kind: noteDone, Over: &outcome{}},
		"less than nothing":   {Kind: noteDone, N: -1},
		"more than there is":  {Kind: noteCompare, First: 1 << 62, N: 1 << 62},
		"an end too early":    {Kind: noteProgress, Stop: true},
		"a role":              {Kind: noteOver, Over: &outcome{Lanes: []Lane{{Role: "\x1b[2J"}}}},
		"a lane":              {Kind: noteOver, Over: &outcome{Lanes: []Lane{{Lane: 7, Role: "data"}}}},
		"paths":               {Kind: noteOver, Over: &outcome{Lanes: []Lane{{Role: "data", Paths: make([]Path, 1)}}}},
		"a rail":              {Kind: noteOver, Over: &outcome{Lanes: []Lane{{Rail: 8, Role: "data"}}}},
		"a time":              {Kind: noteOver, Over: &outcome{Elapsed: -1}},
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

// A partner cannot keep this end busy: it may ask for what makes sense and is bounded.
func TestAskedTooMuch(t *testing.T) {
	for _, tt := range []struct {
		name string
		cfg  Config
		n    note
		in   bool
	}{
		{"a fill of too many", Config{Op: Read, Check: true}, note{Kind: noteFill, N: 5}, true},
		{"a compare of too many", Config{Op: Write, Check: true}, note{Kind: noteCompare, N: 5}, true},
		{"a fill of a write", Config{Op: Write, Check: true}, note{Kind: noteFill, N: 4}, true},
		{"a compare of a read", Config{Op: Read, Check: true}, note{Kind: noteCompare, N: 4}, true},
		{"a compare without --check", Config{Op: Write}, note{Kind: noteCompare, N: 4}, true},
		{"a compare of what nobody sends", Config{Op: Write, Check: true}, note{Kind: noteCompare, N: 4}, false},
	} {
		h := &half{}
		if tt.in {
			h.in = &flow{}
		}
		r := &row{plan: plan{chain: 2, window: 2}, cfg: &tt.cfg, halves: [2]*half{h, {}}, talk: &talk{}}
		if err := r.heard(&heard{note: tt.n}); err == nil || r.talk.pending != nil {
			t.Errorf("%s: got %v and it is taken up %v, want it refused", tt.name, err, r.talk.pending != nil)
		}
	}
	r := &row{plan: plan{chain: 2, window: 2}, cfg: &Config{Op: Write, Check: true}, halves: [2]*half{{in: &flow{}}, {}}, talk: &talk{}}
	if err := r.heard(&heard{note: note{Kind: noteCompare, N: 4}}); err != nil || r.talk.pending == nil {
		t.Errorf("a compare: got %v, want it taken up", err)
	}
}

// What a client asks for says nothing of its memory, which older servers do not know. What a client says of a server's memory does not count.
func TestSpecWithoutMemory(t *testing.T) {
	c := Config{Memory: [2]Memory{{Device: "cuda:0"}}}.withDefaults()
	b, err := json.Marshal(specOf(&c, []int{8}))
	if err != nil || strings.Contains(string(b), "memory") {
		t.Fatalf("the spec is %s (%v), want no memory", b, err)
	}
	s := specOf(&c, []int{8})
	s.Op, s.Memory = Atomic, [2]Memory{{}, {Device: "cuda:0"}}
	if got, err := s.config(); err != nil || got.onDevice() {
		t.Errorf("the Config has memory %v (%v), want that of the host", got.Memory, err)
	}
}
