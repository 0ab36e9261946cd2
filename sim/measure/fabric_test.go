package measure

import (
	"slices"
	"testing"
)

// reduced runs a scenario with a part of its bytes.
func reduced(t *testing.T, name string, seed uint64, bytes int) *Result {
	t.Helper()
	s, ok := Named(name)
	if !ok {
		t.Fatalf("there is no scenario %s", name)
	}
	r, err := s.Run(Options{Seed: seed, Bytes: bytes})
	must(t, err)
	return r
}

// TestVictim checks that credits divide the victim's p50 and p99.9 and the queue at the port by at least
// three, compared with fixed windows, and cost at most a tenth of the goodput.
func TestVictim(t *testing.T) {
	bytes := 64 << 20
	if raced {
		bytes = 16 << 20
	}
	fixed := reduced(t, "reliable-incast-15to1-fixed", 2, bytes)
	credits := reduced(t, "reliable-incast-15to1-credits", 2, bytes)
	t.Logf("p99.9 %.1f and %.1f us, queue %.0f and %.0f bytes, goodput %.3f and %.3f", fixed.Latency.P999, credits.Latency.P999,
		fixed.QueueBytes, credits.QueueBytes, fixed.GoodputRatio, credits.GoodputRatio)
	if 3*credits.Latency.P999 > fixed.Latency.P999 || 3*credits.Latency.P50 > fixed.Latency.P50 {
		t.Errorf("the victim's p50 is %.1f us with fixed windows and %.1f with credits, its p99.9 %.1f and %.1f: want a third",
			fixed.Latency.P50, credits.Latency.P50, fixed.Latency.P999, credits.Latency.P999)
	}
	if 3*credits.QueueBytes > fixed.QueueBytes {
		t.Errorf("the longest queue is %.0f bytes with fixed windows and %.0f with credits: want a third", fixed.QueueBytes, credits.QueueBytes)
	}
	if credits.GoodputRatio < 0.9 && !raced { // A short run is all start and end.
		t.Errorf("goodput_ratio is %.3f with credits, want at least 0.9", credits.GoodputRatio)
	}
}

// TestCollision checks that every flow gets at least 90 % of its share over 16 paths, for any hash of
// the switch, while single paths that collide get about half or less.
func TestCollision(t *testing.T) {
	seeds, bytes := []uint64{1, 2, 17}, 256<<20 // With 17 one uplink has 6 of 128 paths and another 22.
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
