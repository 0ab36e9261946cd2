package sim

import (
	"slices"
	"testing"

	"ibverbx/internal/testslice"
	"ibverbx/verbs"
)

// planted is a mistake that the world does not know of, and the checkers that must find it.
type planted struct {
	name     string
	scenario string // settings beyond the common ones
	within   uint64 // seeds within which it must be found
	checks   []string
	options  Options
}

var checkerMistakes = []planted{
	{"a fragment is dropped", "ops write", 3, []string{"bytes"}, Options{wrap: lie(dropFragment)}},
	{"a fragment of a message is dropped", "ops imm", 3, []string{"notifications", "bytes"}, Options{wrap: lie(dropFragment)}},
	{"a post is swallowed", "ops write", 5, []string{"progress", "bytes"}, Options{wrap: lie(swallow)}},
	{"a WRITE is repeated late", "ops write\nlanes 1\nburst 4", 5, []string{"touch"}, Options{wrap: lie(repeatLate)}},
	{
		"the record comes before the data", "ops imm\nscheme tally\nlanes 2\nfragment 0\nsizes 16..2048", 5,
		[]string{"notifications"},
		Options{wrap: lie(recordFirst)},
	},
	{"an atomic happens twice", "ops atomic", 5, []string{"bytes"}, Options{wrap: lie(twiceAtomic)}},
	{"a sequence number is left out", "ops imm\nscheme dqplb\nlanes 2", 5, []string{"progress", "first error"}, Options{wrap: lie(skipNumber)}},
	{
		"a refused fragment is lost", "ops write\nlanes 2\nfragment 256\nlane-depth 8\nfault refuse end 0a lane 0 after 9 at 0s", 5,
		[]string{"progress", "bytes"},
		Options{wrap: lie(loseRefused)},
	},
	{"a QP is never closed", "", 1, []string{"leaks"}, Options{wrap: func(ctx verbs.Context) verbs.Context {
		return &liar{Context: ctx, extra: true}
	}}},
	{"a completion is repeated", "", 3, []string{"completions"}, Options{wrapPoll: every20th(repeat)}},
	{"a completion is lost", "", 3, []string{"completions", "progress"}, Options{wrapPoll: every20th(lose)}},
	{"two completions are exchanged", "batch 64\nburst 64\ngap 0s\npolls 20us", 5, []string{"completions"}, Options{wrapPoll: every20th(swap)}},
	{"a completion comes before its data", "ops write\nburst 64\ngap 0s\npolls 0s", 5, []string{"bytes", "completions"}, Options{wrapPoll: early}},
	{"a success is reported as a failure", "", 3, []string{"first error"}, Options{wrapPoll: every20th(fake)}},
	{"failures are reported as successes", "ops write\ngap 5us\nfault lane-error end 0a lane 0 at 10us", 5, []string{"bytes", "first error", "completions"}, Options{wrapPoll: hush}},
	{"a message is told of with wrong words", "ops imm", 3, []string{"notifications"}, Options{wrapPoll: wrongWords}},
	{"slots are lost", "send-depth 16..64\nlane-depth 64", 3, []string{"bounds"}, Options{wrapPost: stingy}},
}

// TestPlanted checks that the checkers find each planted mistake within a number of seeds, and find
// nothing in the same worlds without it.
func TestPlanted(t *testing.T) {
	found := map[string]bool{}
	part := testslice.Of(t)
	for i, plant := range checkerMistakes {
		if !part.Has(i, len(checkerMistakes)) {
			continue
		}
		t.Run(plant.name, func(t *testing.T) {
			s, err := Parse("planted", "failover off\nunsignaled 0%\nshared 0\nlanes 2..4\nconnections 1\nhosts 2\n"+plant.scenario)
			if err != nil {
				t.Fatal(err)
			}
			clean(t, s, 1, plant.within)
			pool := NewPool() // It is not closed, because a mistake may leave memory registered.
			plant.options.Pool = pool
			for seed := range plant.within {
				plans, err := s.Plans(seed + 1)
				if err != nil {
					t.Fatal(err)
				}
				f := plans[0].Run(plant.options).Failure
				if f == nil {
					continue
				}
				if !slices.Contains(plant.checks, f.Check) {
					t.Fatalf("seed %d: found by %v, want one of %q", seed+1, f, plant.checks)
				}
				t.Logf("seed %d: %v", seed+1, f)
				found[f.Check] = true
				return
			}
			t.Fatalf("not found in %d seeds", plant.within)
		})
	}
	for _, check := range []string{"bytes", "completions", "notifications", "touch", "first error", "progress", "leaks", "bounds"} {
		if !found[check] && part.Whole() {
			t.Errorf("no plant was found by the checker of %s", check)
		}
	}
}

// TestResetIsTheBarrier checks that late packets of WRITEs, and late answers to READs, are placed after
// failover if the QPs of dead lanes are neither stopped nor reset.
func TestResetIsTheBarrier(t *testing.T) {
	for _, name := range []string{"late-packet", "late-read"} {
		t.Run(name, func(t *testing.T) {
			s, err := Builtin(name)
			if err != nil {
				t.Fatal(err)
			}
			clean(t, s, 1, 10)
			pool := NewPool() // It is not closed, because QPs stay open.
			for seed := range uint64(10) {
				plans, err := s.Plans(seed + 1)
				if err != nil {
					t.Fatal(err)
				}
				f := plans[0].Run(Options{Pool: pool, wrap: func(ctx verbs.Context) verbs.Context { return &liar{Context: ctx, immortal: true} }}).Failure
				if f != nil && f.Check == "touch" {
					t.Logf("seed %d: %v", seed+1, f)
					return
				}
			}
			t.Fatal("10 seeds without a late touch, want one")
		})
	}
}
