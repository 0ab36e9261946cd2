package sim

import "testing"

// everyFaultHappens checks the number of worlds with each kind of fault and of rails.
func everyFaultHappens(t *testing.T, sum *Summary) {
	t.Helper()
	enough := int(sum.Seeds / 100)
	for k := range numFaults {
		if n := sum.FaultWorlds[k.String()]; n < enough {
			t.Errorf("fault %s happened in %d of %d worlds, want at least %d", k, n, sum.Seeds, enough)
		}
		if n, worlds := sum.Faults[k.String()], sum.FaultWorlds[k.String()]; n < worlds {
			t.Errorf("fault %s happened %d times, and in %d worlds", k, n, worlds)
		}
	}
	for _, kind := range []string{"bare", "wrapped", "mixed", "in-turn", "credits", "flows", "shared", "pool"} {
		if n := sum.Rails[kind]; n < enough {
			t.Errorf("rails of kind %s are in %d of %d worlds, want at least %d", kind, n, sum.Seeds, enough)
		}
	}
}

// TestEveryRailHappens checks that the worlds of wrapped have all kinds of rails.
func TestEveryRailHappens(t *testing.T) {
	s, err := Builtin("wrapped")
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
	for _, kind := range []string{"wrapped", "mixed", "in-turn", "credits", "flows", "shared", "pool"} {
		if got[kind] < worlds/10 {
			t.Errorf("rails of kind %s are in %d of %d worlds, want at least %d", kind, got[kind], worlds, worlds/10)
		}
	}
}

// TestChunksFitQueues: no drawn chunk is longer than half of its rail's queue. A longer one could be lost
// every time, and then no lane on that rail could work.
func TestChunksFitQueues(t *testing.T) {
	s, err := Builtin("wrapped")
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
