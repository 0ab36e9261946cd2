package sim

import (
	"strings"
	"testing"

	"ibverbx/internal/testslice"
)

// TestLearningCarriesMore checks that with unequal lanes the learning policy reaches the goodput of the
// scenario and round robin does not. Lanes are unequal because rails are, or because two lanes meet on
// one path.
func TestLearningCarriesMore(t *testing.T) {
	n := uint64(max(testslice.Of(t).Count(3), 2)) // No lanes collide in the first world of ecmp-collision.
	for _, c := range []struct {
		scenario string
		inTurn   float64 // highest share that round robin reaches
	}{{"unequal-rails", 0.75}, {"ecmp-collision", 0.85}} {
		s, err := Builtin(c.scenario)
		if err != nil {
			t.Fatal(err)
		}
		if sum := clean(t, s, 1, n); sum.Share < 0.95 || sum.Goodput <= 0 {
			t.Errorf("scenario %s: %.3f of what the rails carry, want 0.95", c.scenario, sum.Share)
		}
		turn, err := Parse(c.scenario, strings.Replace(s.text, "policy two-choices", "policy round-robin", 1))
		if err != nil {
			t.Fatal(err)
		}
		r := Runner{Scenario: turn, First: 1, Seeds: n}
		sum, err := r.Run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if sum.Failed == 0 || sum.Failures[0].Failure.Check != "goodput" || sum.Share > c.inTurn {
			t.Errorf("scenario %s, lanes in turn: %d of %d worlds failed, %.3f of what the rails carry; want the check of goodput to fail, and at most %.2f",
				c.scenario, sum.Failed, sum.Worlds, sum.Share, c.inTurn)
		}
	}
}

// TestGoodputNeedsRates checks that a scenario with goodput and a rail without a rate fails.
func TestGoodputNeedsRates(t *testing.T) {
	s, err := Parse("test", "goodput 10%\nrate none\nport-rate none\npath-rate none\nfaults 0\nhosts 2")
	if err != nil {
		t.Fatal(err)
	}
	r := Runner{Scenario: s, First: 1, Seeds: 1}
	sum, err := r.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if sum.Failed != 1 || sum.Failures[0].Failure.Check != "world" {
		t.Errorf("%d worlds failed, %+v; want one that says that a rail has no rate", sum.Failed, sum.Failures)
	}
}

// TestGoodputWithinHost: the goodput of a connection within a host, which has no paths to itself, is measured.
func TestGoodputWithinHost(t *testing.T) {
	s, err := Parse("test", `
		goodput 0.01%
		rate 1GB/s
		connections 1
		connection 0 from 1 to 1
		ops write
		messages 50
		sizes 4KiB..64KiB
		gap 0s
		polls 0s`)
	if err != nil {
		t.Fatal(err)
	}
	clean(t, s, 1, 1)
}
