//go:build plant

package sim

import (
	"slices"
	"testing"

	"ibverbx"
)

// sown says in which worlds a mistake of the engine is looked for, and who may find it.
var sown = map[string]struct {
	scenario string
	checks   []string
}{
	// Something is told of twice, or written again after its completion.
	"replay before Down": {"failover", []string{"notifications", "first error", "touch", "bytes", "completions"}},
	// A counter is not what it must be.
	"replay an atomic": {"failover-atomics", []string{"bytes", "notifications"}},
	// The bytes are not there, are touched after their completion, or a completion is of
	// nothing in flight.
	"complete before the data": {"mixed", []string{"bytes", "touch", "notifications", "leaks", "first error"}},
	// The receiver waits for it for ever, or finds itself overrun.
	"lose a number": {"mixed", []string{"progress", "first error"}},
	// Its request never ends, or ends without its bytes.
	"drop a refused fragment": {"mixed", []string{"progress", "bytes", "notifications", "first error", "leaks"}},
}

// sownWithin is within how many seeds a mistake of the engine is found. TestMixed and
// TestScenarios show that nothing is found in such worlds without it.
const sownWithin = 200

// TestPlantedInEngine: a mistake of the engine itself is found by a checker whose business
// it is.
func TestPlantedInEngine(t *testing.T) {
	for place, name := range ibverbx.Plants() {
		t.Run(name, func(t *testing.T) {
			plant := sown[name]
			s, err := Named(plant.scenario)
			if err != nil {
				t.Fatalf("the plant %q: %v", name, err)
			}
			pool := NewPool() // what a mistake leaves registered is not freed
			for seed := range uint64(sownWithin) {
				plans, err := s.Plans(seed + 1)
				if err != nil {
					t.Fatal(err)
				}
				f := plans[0].Run(Options{Pool: pool, meet: func(q *ibverbx.VirtualQP) { q.Plant(place) }}).Failure
				if f == nil {
					continue
				}
				if !slices.Contains(plant.checks, f.Check) {
					t.Fatalf("seed %d: found by %v, want one of %q", seed+1, f, plant.checks)
				}
				t.Logf("seed %d: %v", seed+1, f)
				return
			}
			t.Fatalf("not found in %d seeds", sownWithin)
		})
	}
}
