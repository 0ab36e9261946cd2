package sim

import (
	"os"
	"strconv"
	"testing"

	"ibverbx/internal/testslice"
)

// seeds returns the number of seeds a test runs: n, a slice's share of n, or the value of IBVERBX_TEST_SIM_SEEDS.
func seeds(t *testing.T, n uint64) uint64 {
	t.Helper()
	if s := os.Getenv("IBVERBX_TEST_SIM_SEEDS"); s != "" {
		v, err := strconv.ParseUint(s, 10, 32)
		if err != nil {
			t.Fatalf("IBVERBX_TEST_SIM_SEEDS is %q: want a number", s)
		}
		return v
	}
	if testing.Short() {
		return max(n/10, 1)
	}
	return uint64(testslice.Of(t).Count(int(n)))
}

// TestMixed runs the mixed world on 400 seeds, or at least a third of them. Every guarantee must hold, and
// every kind of fault and of rails must occur in at least 1 % of the worlds. A hundred seeds are too few to
// show that.
func TestMixed(t *testing.T) {
	s, err := Builtin("mixed")
	if err != nil {
		t.Fatal(err)
	}
	first, n := firstSeed(t, 400), seeds(t, 400)
	if part := testslice.Of(t).AtMost(3); !testing.Short() && os.Getenv("IBVERBX_TEST_SIM_SEEDS") == "" {
		first, n = 1+uint64(part.First(400)), uint64(part.Count(400))
	}
	sum := clean(t, s, first, n)
	if sum.Seeds > 100 {
		everyFaultHappens(t, &sum)
	}
}

// firstSeed returns the first seed of a test with n seeds: each slice continues where the previous one stops.
func firstSeed(t *testing.T, n int) uint64 {
	t.Helper()
	if os.Getenv("IBVERBX_TEST_SIM_SEEDS") != "" || testing.Short() {
		return 1
	}
	return 1 + uint64(testslice.Of(t).First(n))
}

// clean runs a scenario on n seeds and requires every guarantee to hold.
func clean(t *testing.T, s *Scenario, first, n uint64) Summary {
	t.Helper()
	r := Runner{Scenario: s, First: first, Seeds: n}
	sum, err := r.Run(t.Context())
	if err != nil {
		t.Fatalf("scenario %s: %v", s.Name, err)
	}
	for _, f := range sum.Failures {
		t.Errorf("scenario %s, seed %d: %v\n%s", s.Name, f.Plan.Seed, f.Failure, f.Plan)
	}
	if sum.Seeds != n || sum.Messages == 0 {
		t.Errorf("scenario %s: %d of %d seeds, %d messages", s.Name, sum.Seeds, n, sum.Messages)
	}
	return sum
}

// TestScenarios runs every built-in scenario on some seeds.
func TestScenarios(t *testing.T) {
	for i, name := range Names() {
		t.Run(name, func(t *testing.T) {
			s, err := Builtin(name)
			if err != nil {
				t.Fatal(err)
			}
			if s.About == "" {
				t.Errorf("scenario %s does not say what it is about", name)
			}
			first, n := firstSeed(t, 10), seeds(t, 10)
			if len(s.sweeps) > 0 {
				if !testslice.Of(t).Has(i, len(Names())) {
					t.Skip("hundreds of worlds, and not in this slice")
				}
				n = min(n, 1)
			}
			if _, measures := s.pins["goodput"]; measures {
				first, n = 1, min(n, 3) // Each moves many megabytes.
			}
			clean(t, s, first, n)
		})
	}
}
