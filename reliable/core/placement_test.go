package core

import (
	"slices"
	"testing"

	"ibverbx/internal/testslice"
)

// copying is a chunk being copied into memory that the CPU cannot write.
type copying struct {
	ev   Event
	act  Action
	data []byte
}

// placeLater starts placing the chunk that end i is stepping.
func (r *rig) placeLater(i int, ev *Event, a *Action) {
	e := &r.ends[i]
	e.copies = append(e.copies, copying{ev: *ev, act: *a, data: e.landing})
	if r.later != nil {
		r.later(i)
	}
}

// placed completes the oldest copy of end i, if any.
func (r *rig) placed(i int) {
	e := &r.ends[i]
	if len(e.copies) == 0 {
		return
	}
	c := e.copies[0]
	e.copies = e.copies[1:]
	e.landing = c.data
	e.place(&c.ev, &c.act)
	c.ev.Kind, c.ev.Status = EvPlaced, statusSuccess
	r.step(i, c.ev)
}

// dropCopies refuses all copies of end i: they will not write.
func (r *rig) dropCopies(i int) {
	e := &r.ends[i]
	dropped := e.copies
	if r.plant != plantCopyGoesOn {
		e.copies = nil
	}
	for _, c := range dropped {
		c.ev.Kind, c.ev.Status = EvPlaced, StatusNoRecv
		r.step(i, c.ev)
	}
}

// fingerprintCopies adds the copies in progress.
func (e *end) fingerprintCopies(b []byte) []byte {
	b = putInts(b, len(e.copies))
	for i := range e.copies {
		ev := &e.copies[i].ev
		h := &ev.Header
		b = putInts(b, uint64(ev.Imm.CSN), uint64(ev.Imm.Flow), uint64(h.Op), uint64(h.Xmit), h.Addr, uint64(h.Message), uint64(h.Offset))
	}
	return b
}

// TestExplorePlacement is TestExplore with placements that end at any time, or are refused.
func TestExplorePlacement(t *testing.T) {
	cases := []struct {
		scene
		bounds
	}{
		{oneWrite, bounds{1, 2}},
		{oneWrite, bounds{2, 1}},
		{oneWrite, bounds{0, 4}},
		{twoChunks, bounds{1, 1}},
		{notified, bounds{1, 1}},
		{mixed, bounds{0, 1}},
		{mixed, bounds{2, 0}},
		{oneRead, bounds{1, 1}},
		{longRead, bounds{1, 0}},
		{oneAtomic, bounds{1, 0}},
	}
	for i, tt := range cases {
		if !testslice.Of(t).Has(i, len(cases)) {
			continue
		}
		x := exploreSlow(t, tt.scene, tt.bounds, plantNone)
		if x.found != "" {
			t.Fatalf("%s, faults %d, timers %d: %s", tt.name, tt.faults, tt.ticks, x.found)
		}
		t.Logf("%s, faults %d, timers %d: %d states, %d of them finished", tt.name, tt.faults, tt.ticks, x.states, x.ends)
	}
}

func exploreSlow(tb testing.TB, s scene, b bounds, p plant) *explorer {
	tb.Helper()
	x := &explorer{bounds: b, finish: s.finished, fairRun: 400}
	m := s.model(tb)
	m.plant, m.slow = p, true
	x.run(m)
	return x
}

// TestExploreFindsBadPlacement plants the mistakes of an owner with deferred placement.
func TestExploreFindsBadPlacement(t *testing.T) {
	for name, tt := range map[string]struct {
		plant
		scene
		bounds
	}{
		"in place too early":         {plantPlacedEarly, mixed, bounds{0, 0}},
		"refused, but still written": {plantCopyGoesOn, oneWrite, bounds{2, 2}},
	} {
		if x := exploreSlow(t, tt.scene, tt.bounds, tt.plant); x.found == "" {
			t.Errorf("%s: %d states, nothing found", name, x.states)
		} else {
			t.Logf("%s: %d states: %s", name, x.states, x.found)
		}
	}
}

// TestPlacementDefersAcks: an acknowledgement waits for a chunk being placed, but at most AckDelay. Otherwise
// the peer would mistake the gap for a loss.
func TestPlacementDefersAcks(t *testing.T) {
	for _, slow := range []int64{1_000, 1_000_000} {
		l := newLine(t, modest(), modest(), 4096, 1)
		l.slow, l.CopyTime = true, slow
		lost := false
		l.Lose = func(_ int, p *packet) bool { // the first chunk, once
			first := p.route >= RoutePath && p.imm.CSN == 0 && !lost
			lost = lost || first
			return first
		}
		l.post(0, Message{Kind: MsgWrite}, bytesOf(4096, 1), 0)
		l.finish(t, second)
		s, r := l.ends[0].conn.Stats(), l.ends[1].conn.Stats()
		if slow < modest().AckDelay && (s.Retransmitted != 1 || r.Duplicates != 0) {
			t.Errorf("%d chunks sent again, %d of them for nothing, want 1 and 0", s.Retransmitted, r.Duplicates)
		}
		if copies := l.copied; copies != 1 {
			t.Errorf("%d copies, want 1", copies)
		}
	}
}

// TestPlacedForNothing: completing an unknown placement has no effect.
func TestPlacedForNothing(t *testing.T) {
	l := newLine(t, modest(), modest(), 4096, 1)
	l.post(0, Message{Kind: MsgWrite}, bytesOf(100, 1), 0)
	for _, csn := range []uint16{0, 1, 40, 65535} {
		for _, flow := range []uint16{0, 1, 5000} {
			ev := Event{Kind: EvPlaced}
			ev.Imm.CSN, ev.Imm.Flow = csn, flow
			if acts := l.ends[1].conn.Step(l.now, &ev); len(acts) != 0 {
				t.Errorf("EvPlaced of chunk %d, flow %d = %+v, want nothing", csn, flow, slices.Clone(acts))
			}
		}
	}
	l.finish(t, second)
}
