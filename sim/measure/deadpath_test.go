package measure

import "testing"

// TestDeathAtAnyTime lets the path die at some moments of the transfer, the very last ones among
// them: it never costs a millisecond, and the path is taken out of service unless the transfer
// was over before anybody could know.
func TestDeathAtAnyTime(t *testing.T) {
	moments := 12
	if raced {
		moments = 3
	}
	worst := 0.0
	for i := range moments {
		share := float64(i) / float64(moments-1)
		r := &Result{}
		must(t, runDeadPath(Options{Seed: 1, Bytes: 16 << 20}, r, i, share))
		if *r.CostUS >= 1000 {
			t.Errorf("a death after %.2f of the transfer costs %.1f us, want less than 1000", share, *r.CostUS)
		}
		if share > 0.05 && share < 0.7 && r.Counters.PathsDown != 1 {
			t.Errorf("a death after %.2f of the transfer: %d paths are down, want 1", share, r.Counters.PathsDown)
		}
		worst = max(worst, *r.CostUS)
	}
	t.Logf("a death costs %.1f us at the most", worst)
}
