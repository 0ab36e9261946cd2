package remote

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/internal/perf/measure"
)

// A text is cut between letters: half of one would be refused as a note.
func TestBriefText(t *testing.T) {
	for _, text := range []string{"short", strings.Repeat("x", maxTextBytes-1) + "é and more", "\xff broken"} {
		b, err := json.Marshal(&controlMessage{Kind: kindAnswer, Text: brief(errors.New(text))})
		if err != nil {
			t.Fatalf("Marshal: got %v, want no error", err)
		}
		var n controlMessage
		if err := decode(b, &n); err != nil || n.check() != nil || n.Text == "" {
			t.Errorf("%.20q: got %q, %v and %v, want a note that the partner takes", text, n.Text, err, n.check())
		}
	}
}

// Whatever a partner says is refused, or makes sense and is written just so.
func FuzzNote(f *testing.F) {
	for _, v := range []any{
		&controlMessage{Kind: kindStart}, &controlMessage{Kind: kindCompare, First: 3, N: 4}, &controlMessage{Kind: kindDone, N: 4, Stop: true}, &controlMessage{Kind: kindOver, Over: &measure.Outcome{Messages: 5, Lanes: []measure.Lane{{Role: "data"}}}},
		specOf(&measure.Config{Op: measure.Write, Mode: measure.Bandwidth, Iterations: 5, Rails: 2, QPs: 8, Impair: []measure.Impair{{Rail: 1, Loss: 0.01}}}, []int{8, 64}),
		measure.Host{Devices: []string{"soft0"}, Reads: 16},
	} {
		b, err := json.Marshal(v)
		if err != nil {
			f.Fatalf("Marshal: got %v, want no error", err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var n controlMessage
		if decode(b, &n) == nil && n.check() == nil && (n.First < 0 || n.N < 0 || n.First+n.N < 0) {
			t.Errorf("%s is taken, and makes no sense", b)
		}
		var h measure.Host
		if decode(b, &h) == nil {
			_ = checkHost(&h)
		}
		var s spec
		if decode(b, &s) != nil {
			return
		}
		c, err := s.config()
		if err != nil {
			return
		}
		for _, size := range c.Sizes {
			client, requests := c.Footprint(0, size)
			server, _ := c.Footprint(1, size)
			if n := max(client, server); n > maxBytes || n < 0 || requests > measure.MaxRequests {
				t.Errorf("%s makes a side of %d bytes with %d requests in flight", b, n, requests)
			}
		}
	})
}

// What a partner says of itself is printed, so it must be harmless.
func TestNotesRefused(t *testing.T) {
	good := controlMessage{Kind: kindOver, Over: &measure.Outcome{Messages: 5, Lanes: []measure.Lane{{Role: "data"}, {Lane: 1, Role: "message"}}}}
	if err := good.check(); err != nil {
		t.Errorf("a good note: got %v, want no error", err)
	}
	for name, n := range map[string]controlMessage{
		"an unknown kind":     {Kind: "jump"},
		"over without result": {Kind: kindOver},
		"a result too early":  {Kind: kindDone, Over: &measure.Outcome{}},
		"less than nothing":   {Kind: kindDone, N: -1},
		"more than there is":  {Kind: kindCompare, First: 1 << 62, N: 1 << 62},
		"an end too early":    {Kind: kindProgress, Stop: true},
		"a role":              {Kind: kindOver, Over: &measure.Outcome{Lanes: []measure.Lane{{Role: "\x1b[2J"}}}},
		"a lane":              {Kind: kindOver, Over: &measure.Outcome{Lanes: []measure.Lane{{Lane: 7, Role: "data"}}}},
		"paths":               {Kind: kindOver, Over: &measure.Outcome{Lanes: []measure.Lane{{Role: "data", Paths: make([]measure.Path, 1)}}}},
		"a rail":              {Kind: kindOver, Over: &measure.Outcome{Lanes: []measure.Lane{{Rail: 8, Role: "data"}}}},
		"a time":              {Kind: kindOver, Over: &measure.Outcome{Elapsed: -1}},
	} {
		if err := n.check(); err == nil {
			t.Errorf("%s: got no error, want one", name)
		}
	}
	for name, h := range map[string]measure.Host{
		"no device": {}, "a device": {Devices: []string{"a\x1bb"}}, "a long device": {Devices: []string{string(make([]byte, 65))}}, "nine": {Devices: make([]string, 9)},
	} {
		if err := checkHost(&h); err == nil {
			t.Errorf("%s: got no error, want one", name)
		}
	}
}

// TestSecondRequest: the remote side may request one comparison at a time.
func TestSecondRequest(t *testing.T) {
	c := &control{run: new(measure.SizeRun), pending: &controlMessage{Kind: kindCompare, N: 4}}
	if err := c.handle(&received{controlMessage: controlMessage{Kind: kindCompare, N: 4}}); err == nil {
		t.Error("a second compare: got no error, want it refused")
	}
}

// TestHealthRefused: the remote side cannot send counters of more rails or lanes than there can be.
func TestHealthRefused(t *testing.T) {
	for _, h := range []measure.SideHealth{{Rails: make([]measure.Health, ibverbx.MaxRails+1)}, {Lanes: make([]measure.Health, maxHealthLanes+1)}} {
		m := controlMessage{Kind: kindOver, Over: &measure.Outcome{Health: h}}
		if err := m.check(); err == nil {
			t.Errorf("counters of %d rails and %d lanes are accepted, want an error", len(h.Rails), len(h.Lanes))
		}
	}
}

// What a client asks for says nothing of its memory, which older servers do not know. What a client says of a server's memory does not count.
func TestSpecWithoutMemory(t *testing.T) {
	c, err := measure.Config{Memory: [2]measure.Memory{{Device: "cuda:0"}}}.Complete()
	if err != nil {
		t.Fatalf("Complete: got %v, want no error", err)
	}
	b, err := json.Marshal(specOf(&c, []int{8}))
	if err != nil || strings.Contains(string(b), "memory") {
		t.Fatalf("the spec is %s (%v), want no memory", b, err)
	}
	s := specOf(&c, []int{8})
	s.Op, s.Memory = measure.Atomic, [2]measure.Memory{{}, {Device: "cuda:0"}}
	if got, err := s.config(); err != nil || got.Memory[0].Device+got.Memory[1].Device != "" {
		t.Errorf("the Config has memory %v (%v), want that of the host", got.Memory, err)
	}
}
