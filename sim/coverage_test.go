package sim

import (
	"testing"

	"ibverbx/internal/slice"
)

// TestEveryFaultHappens checks that every kind of fault, and every kind of rails that is drawn, is in at
// least 1 % of the mixed worlds.
func TestEveryFaultHappens(t *testing.T) {
	s, err := Named("mixed")
	if err != nil {
		t.Fatal(err)
	}
	if !slice.Of(t).Whole() {
		t.Skip("a slice has too few worlds to show what happens in 1 % of them; the plain run has all")
	}
	const worlds = 400
	r := Runner{Scenario: s, First: 1, Seeds: uint64(worlds)}
	sum, err := r.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for k := range numFaults {
		if n := sum.Struck[k.String()]; n < worlds/100 {
			t.Errorf("fault %s happened in %d of %d worlds, want at least %d", k, n, worlds, worlds/100)
		}
		if n, worlds := sum.Faults[k.String()], sum.Struck[k.String()]; n < worlds {
			t.Errorf("fault %s happened %d times, and in %d worlds", k, n, worlds)
		}
	}
	for _, kind := range []string{"bare", "wrapped", "mixed", "in-turn", "credits", "flows", "shared"} {
		if n := sum.Rails[kind]; n < worlds/100 {
			t.Errorf("rails of kind %s are in %d of %d worlds, want at least %d", kind, n, worlds, worlds/100)
		}
	}
}

// TestEveryRailHappens checks that the worlds of wrapped have all kinds of rails.
func TestEveryRailHappens(t *testing.T) {
	s, err := Named("wrapped")
	if err != nil {
		t.Fatal(err)
	}
	const worlds = 400
	got := map[string]int{}
	for seed := range uint64(worlds) {
		for _, kind := range s.draw(seed).railKinds() {
			got[kind]++
		}
	}
	for _, kind := range []string{"wrapped", "mixed", "in-turn", "credits", "flows", "shared"} {
		if got[kind] < worlds/10 {
			t.Errorf("rails of kind %s are in %d of %d worlds, want at least %d", kind, got[kind], worlds, worlds/10)
		}
	}
}

// TestChunksFitQueues: no drawn chunk is longer than half a queue of its rail. A longer one could be
// lost every time, and then no lane of that rail could work.
func TestChunksFitQueues(t *testing.T) {
	s, err := Named("wrapped")
	if err != nil {
		t.Fatal(err)
	}
	for seed := range uint64(500) {
		for i, r := range s.draw(seed).Rails {
			if queue := min(r.PortQueue, r.PathQueue); r.Wrapped && r.Chunk > queue/2 {
				t.Errorf("seed %d: rail %d has chunks of %d bytes and a queue of %d", seed, i, r.Chunk, queue)
			}
		}
	}
}
