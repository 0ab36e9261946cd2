package measure

import (
	"slices"
	"testing"

	"ibverbx/internal/testslice"
)

// reduced runs a scenario with a part of its bytes.
func reduced(t *testing.T, name string, seed uint64, bytes int) *Result {
	t.Helper()
	s, ok := Builtin(name)
	if !ok {
		t.Fatalf("there is no scenario %s", name)
	}
	r, err := s.Run(Options{Seed: seed, Bytes: bytes})
	must(t, err)
	return r
}

// TestVictim: with the defaults, the victim's p50 and p99.9 and the port's queue are a fifth of their values
// with RC. The goodput is at least 0.98 of RC's.
func TestVictim(t *testing.T) {
	bytes := 64 << 20
	if raced {
		bytes = 16 << 20
	}
	rc := reduced(t, "rc-incast-15to1", 2, bytes)
	credits := reduced(t, "reliable-incast-15to1-credits", 2, bytes)
	t.Logf("p99.9 %.1f and %.1f us, queue %.0f and %.0f bytes, goodput %.3f and %.3f", rc.Latency.P999, credits.Latency.P999,
		rc.QueueBytes, credits.QueueBytes, rc.GoodputRatio, credits.GoodputRatio)
	if 5*credits.Latency.P999 > rc.Latency.P999 || 5*credits.Latency.P50 > rc.Latency.P50 {
		t.Errorf("the victim's p50 is %.1f us with RC and %.1f with credits, its p99.9 %.1f and %.1f: want a fifth",
			rc.Latency.P50, credits.Latency.P50, rc.Latency.P999, credits.Latency.P999)
	}
	if 5*credits.QueueBytes > rc.QueueBytes {
		t.Errorf("the longest queue is %.0f bytes with RC and %.0f with credits: want a fifth", rc.QueueBytes, credits.QueueBytes)
	}
	if credits.GoodputRatio < 0.98*rc.GoodputRatio && !raced { // A short run is all start and end.
		t.Errorf("goodput_ratio is %.3f with RC and %.3f with credits, want at least 0.98 of it", rc.GoodputRatio, credits.GoodputRatio)
	}
}

// TestCollision: every flow gets at least 90 % of its share over 16 paths, for any hash of the switch, while
// colliding single paths get about half or less.
func TestCollision(t *testing.T) {
	seeds, bytes := testslice.Pick(t, []uint64{1, 2, 17}), 256<<20 // With 17 one uplink has 6 of 128 paths and another 22.
	if raced {
		seeds, bytes = seeds[:1], 64<<20
	}
	for _, seed := range seeds {
		spread := reduced(t, "reliable-ecmp-collision", seed, bytes)
		single := reduced(t, "single-ecmp-collision", seed, bytes/4)
		t.Logf("seed %d: %.3f of single paths, %.3f of 16", seed, single.FlowRatios, spread.FlowRatios)
		if len(spread.FlowRatios) != ecmpFlows || slices.Min(spread.FlowRatios) != spread.GoodputRatio {
			t.Errorf("seed %d: goodput_ratio is %.3f, want the least of %d flows: %.3f", seed, spread.GoodputRatio, ecmpFlows, spread.FlowRatios)
		}
		if spread.GoodputRatio < 0.9 && !raced {
			t.Errorf("seed %d: the worst flow gets %.3f over 16 paths, want at least 0.9", seed, spread.GoodputRatio)
		}
		if single.GoodputRatio > 0.52 {
			t.Errorf("seed %d: the worst flow gets %.3f over one path, want a half or less: eight flows on eight uplinks meet", seed, single.GoodputRatio)
		}
	}
}
