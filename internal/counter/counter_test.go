package counter

import "testing"

// TestCounter: a reader in another goroutine sees the number grow and finds its last value.
func TestCounter(t *testing.T) {
	var c, high Counter
	const end = 10_000
	read := make(chan uint64, 1)
	go func() {
		last := uint64(0)
		for last < end {
			now := c.Load()
			if now < last {
				t.Errorf("Load = %d after %d", now, last)
			}
			last = now
		}
		read <- last
	}()
	for i := range uint64(end) {
		c.Add(1)
		high.Raise(i % 100)
	}
	if got := <-read; got != end || high.Load() != 99 {
		t.Errorf("Load = %d and %d, want %d and 99", got, high.Load(), end)
	}
}
