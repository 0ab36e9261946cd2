package bootstrap

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestUntilKeepalive: keepalives are at most an interval apart, because the peer's DeadAfter relies on it, and Conns with the same
// interval send them at the same times.
func TestUntilKeepalive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		interval := time.Duration(rapid.Int64Range(int64(minDeadAfter/3), int64(maxDeadAfter/3)).Draw(t, "interval"))
		now := time.Unix(0, rapid.Int64Range(-1<<62, 1<<62).Draw(t, "now"))
		slot := interval / keepaliveSlots
		d := untilKeepalive(now, interval)
		if d > interval || d <= interval-slot {
			t.Fatalf("untilKeepalive(%d, %v) = %v, want more than %v and at most %v", now.UnixNano(), interval, d, interval-slot, interval)
		}
		if off := now.Add(d).UnixNano() % int64(slot); now.UnixNano() > 0 && off != 0 {
			t.Fatalf("untilKeepalive(%d, %v) = %v, %d ns after the start of a slot", now.UnixNano(), interval, d, off)
		}
	})
}
