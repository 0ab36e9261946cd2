package core

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"ibverbx/internal/testslice"
)

// tiny is a configuration for the explorer: two paths, a window of four, fixed timing and unreachable limits.
func tiny() Config {
	return Config{
		Paths: 2, Window: 4, ChunkBytes: 16, PathDepth: 8, SendDepth: 4, PeerCredit: 4,
		FixedRTT: 10_000, GiveUp: maxDuration, MaxAge: maxDuration,
	}
}

// scene is a scenario for the explorer.
type scene struct {
	name  string
	posts []Message
	sizes []int
	flows int // posts are distributed round-robin; 0 means one
	// shared makes the receiver's flows share receives.
	shared bool
	// carrier changes the configuration; nil is the default.
	carrier func(*Config)
}

// Scenes, smallest first: the less there is to send, the more events can be explored.
var (
	oneWrite  = scene{"write", []Message{{Kind: MsgWrite}}, []int{16}, 0, false, nil}
	twoChunks = scene{"two chunks", []Message{{Kind: MsgWrite}}, []int{32}, 0, false, nil}
	notified  = scene{"notified write", []Message{{Kind: MsgWriteImm, Flags: 2, Imm: 5}}, []int{16}, 0, false, nil}
	oneRead   = scene{"read", []Message{{Kind: MsgFetch, Answer: 16}}, []int{0}, 0, false, nil}
	longRead  = scene{"read of two chunks", []Message{{Kind: MsgFetch, Answer: 32}}, []int{0}, 0, false, nil}
	oneAtomic = scene{"atomic", []Message{{Kind: MsgFetch}}, []int{0}, 0, false, nil}
	writeRead = scene{"write, read", []Message{{Kind: MsgWrite}, {Kind: MsgFetch, Answer: 16}}, []int{16, 0}, 0, false, nil}
	mixed     = scene{"write, send", []Message{{Kind: MsgWriteImm, Flags: 2, Imm: 5}, {Kind: MsgSend}}, []int{32, 8}, 0, false, nil}
	twoFlows  = scene{"two flows", []Message{{Kind: MsgWrite}, {Kind: MsgWriteImm, Flags: 2, Imm: 5}}, []int{16, 16}, 2, false, nil}
	sharedTwo = scene{"two flows that share receives", []Message{{Kind: MsgSend}, {Kind: MsgSend}}, []int{8, 8}, 2, true, nil}
	sharedOne = scene{"shared receive", []Message{{Kind: MsgSend}}, []int{8}, 0, true, nil}
	drained   = scene{"two chunks while the queue is emptied", []Message{{Kind: MsgWrite}}, []int{32}, 0, false, drains}
)

// datagrams makes cfg use shared QPs that reorder, whose bytes software places.
func datagrams(cfg *Config) {
	cfg.Carrier.Software, cfg.Carrier.Unordered, cfg.Carrier.Shared = true, true, true
}

// drains makes the sender adapt its window and start with a drain.
func drains(cfg *Config) { cfg.Adapt, cfg.Allowance = true, 32 }

// over returns the scene with the paths changed by change.
func (s scene) over(change func(*Config)) scene {
	s.name, s.carrier = s.name+" over datagrams", change
	return s
}

// model returns the first state of a scene: receives are posted, and the peer knows.
func (s scene) model(tb testing.TB) *model {
	tb.Helper()
	cfg := tiny()
	cfg.Flows = s.flows
	if s.carrier != nil {
		s.carrier(&cfg)
	}
	m, err := newModel(cfg, cfg, 32)
	if err != nil {
		tb.Fatalf("newModel = %v, want none", err)
	}
	flows := max(s.flows, 1)
	if s.shared {
		m.share(1)
	}
	for i := range s.posts {
		m.receiveOn(1, i%flows, 8)
	}
	for len(m.ctrl[1]) > 0 {
		m.fair()
	}
	if c := m.ends[0].conn; cfg.Adapt {
		c.congestion.base = c.cfg.FixedRTT
		c.congestion.startDrain(drainDeep)
	}
	target := 0
	for i, p := range s.posts {
		switch {
		case p.Kind == MsgFetch && p.Answer == 0:
			m.add(0, i%flows, false)
			continue
		case p.Kind == MsgFetch:
			m.read(0, i%flows, 8, int(p.Answer), false)
			continue
		}
		m.postOn(0, i%flows, p, bytesOf(s.sizes[i], uint64(i)), target)
		if p.Kind != MsgSend {
			target += s.sizes[i]
		}
	}
	return m
}

// finished reports whether everything has completed and was delivered.
func (s scene) finished(m *model) bool {
	want, got := 0, 0
	for _, p := range s.posts {
		if p.Kind == MsgWriteImm || p.Kind == MsgSend {
			want++
		}
	}
	for _, f := range m.ends[1].flows {
		got += len(f.got)
	}
	return m.finished(0) && got == want
}

// explore explores a scene within bounds, with a fault planted.
func explore(tb testing.TB, s scene, b bounds, p plant) *explorer {
	tb.Helper()
	x := &explorer{bounds: b, finish: s.finished, fairRun: 400}
	m := s.model(tb)
	m.plant = p
	x.run(m)
	return x
}

// more returns the additional faults and timers, from the environment.
func more(tb testing.TB) int {
	tb.Helper()
	s := os.Getenv("IBVERBX_TEST_EXPLORE")
	if s == "" {
		return 0
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		tb.Fatalf("IBVERBX_TEST_EXPLORE is %q, want a number", s)
	}
	return n
}

// TestExplore is the small model check: no interleaving of arrivals, timers and faults violates a guarantee
// or reaches a state that a fair network cannot finish from.
func TestExplore(t *testing.T) {
	cases := []struct {
		scene
		bounds
	}{
		{oneWrite, bounds{0, 2}},
		{oneWrite, bounds{0, 3}},
		{oneWrite, bounds{1, 2}},
		{oneWrite, bounds{3, 1}},
		{oneWrite, bounds{2, 2}},
		{oneWrite, bounds{1, 3}},
		{oneWrite, bounds{0, 4}},
		{twoChunks, bounds{0, 2}},
		{twoChunks, bounds{1, 1}},
		{notified, bounds{1, 1}},
		{mixed, bounds{1, 1}},
		{mixed, bounds{3, 0}},
		{oneRead, bounds{0, 1}},
		{oneRead, bounds{1, 0}},
		{oneRead, bounds{1, 1}},
		{oneRead, bounds{0, 2}},
		{longRead, bounds{1, 0}},
		{oneAtomic, bounds{1, 1}},
		{writeRead, bounds{1, 0}},
		{writeRead, bounds{0, 1}},
		{twoFlows, bounds{0, 1}},
		{twoFlows, bounds{1, 0}},
		{sharedOne, bounds{1, 1}},
		{sharedOne, bounds{0, 2}},
		{sharedTwo, bounds{1, 0}},
		{sharedTwo, bounds{0, 1}},
		{oneWrite.over(datagrams), bounds{0, 3}},
		{oneWrite.over(datagrams), bounds{2, 1}},
		{oneWrite.over(datagrams), bounds{1, 2}},
		{twoChunks.over(datagrams), bounds{0, 2}},
		{twoChunks.over(datagrams), bounds{1, 1}},
		{notified.over(datagrams), bounds{1, 1}},
		{mixed.over(datagrams), bounds{1, 0}},
		{mixed.over(datagrams), bounds{0, 1}},
		{oneRead.over(datagrams), bounds{1, 1}},
		{longRead.over(datagrams), bounds{1, 0}},
		{oneAtomic.over(datagrams), bounds{1, 1}},
		{writeRead.over(datagrams), bounds{0, 1}},
		{twoFlows.over(datagrams), bounds{1, 0}},
		{sharedOne.over(datagrams), bounds{1, 1}},
		{drained, bounds{0, 2}},
		{drained, bounds{1, 1}},
	}
	for i, tt := range cases {
		if !testslice.Of(t).Has(i, len(cases)) {
			continue
		}
		n := more(t)
		tt.faults, tt.ticks = tt.faults+n, tt.ticks+n
		x := explore(t, tt.scene, tt.bounds, plantNone)
		if x.found != "" {
			t.Fatalf("%s, faults %d, timers %d: %s", tt.name, tt.faults, tt.ticks, x.found)
		}
		t.Logf("%s, faults %d, timers %d: %d states, %d of them finished", tt.name, tt.faults, tt.ticks, x.states, x.ends)
	}
}

// TestExploreFinds plants faults that the exploration must find.
func TestExploreFinds(t *testing.T) {
	for _, tt := range []struct {
		name string
		plant
		scene
		bounds
		want string
	}{
		{"no fence", plantNoFence, oneWrite, bounds{0, 3}, "fence: "},
		{"silence at duplicates", plantSilent, oneWrite, bounds{1, 0}, "hang: "},
		{"the same QP number", plantSameNumber, oneWrite, bounds{0, 4}, "fence: "},
		{"silence at duplicates of datagrams", plantSilent, oneWrite.over(datagrams), bounds{1, 0}, "hang: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			x := explore(t, tt.scene, tt.bounds, tt.plant)
			if !strings.HasPrefix(x.found, tt.want) {
				t.Fatalf("%d states, found %q, want %q", x.states, x.found, tt.want)
			}
			t.Logf("%d states: %s", x.states, x.found)
		})
	}
}
