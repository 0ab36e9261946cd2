package measure

import (
	"testing"

	"ibverbx/internal/testslice"
)

// TestDeathAtAnyTime: the path dies at several moments of the transfer, including its end. This never costs a
// millisecond. The path goes out of service, unless the transfer completes with its first loss. A slice runs
// either WRITEs or READs.
func TestDeathAtAnyTime(t *testing.T) {
	for _, name := range testslice.Pick(t, []string{"WRITE", "READ"}) {
		t.Run(name, func(t *testing.T) { deathAtAnyTime(t, name == "READ") })
	}
}

func deathAtAnyTime(t *testing.T, read bool) {
	moments := 12
	if raced {
		moments = 3
	}
	worst, noticed := 0.0, 0
	for i := range moments {
		share := float64(i) / float64(moments-1)
		r := &Result{}
		must(t, runDeadPath(Options{Seed: 1, Bytes: 16 << 20}, r, read, i, share))
		if *r.CostUS >= 1000 {
			t.Errorf("a death after %.2f of the transfer costs %.1f us, want less than 1000", share, *r.CostUS)
		}
		if c := r.Counters; c.Retransmitted > 1 && c.PathsDown != 1 {
			t.Errorf("a death after %.2f of the transfer: %d chunks were sent again and %d paths are down, want 1", share, c.Retransmitted, c.PathsDown)
		}
		if c := r.Counters; c.Retransmitted > 0 && c.PacketsLost == 0 {
			t.Errorf("a death after %.2f of the transfer: %d chunks were sent again and no packet counts as lost, want some", share, c.Retransmitted)
		}
		if r.Counters.PathsDown == 1 {
			noticed++
		}
		worst = max(worst, *r.CostUS)
	}
	if noticed < moments/3 {
		t.Errorf("%d of %d deaths were noticed, want at least a third: nothing was sent on the path", noticed, moments)
	}
	t.Logf("a death costs at most %.1f us, %d of %d were noticed", worst, noticed, moments)
}
