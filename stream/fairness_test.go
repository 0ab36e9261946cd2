package stream

import (
	"io"
	"slices"
	"testing"
)

// TestBulkAndPing: while other streams saturate the link, a short message waits behind at most one window of
// their bytes, 8 MiB by default. The test counts bytes, because time depends on the machine. One ping in a
// hundred also waits for a CPU behind other goroutines, so only the median is checked. Package node tests the
// queueing order at the NICs.
func TestBulkAndPing(t *testing.T) {
	onLinks(t, func(t *testing.T, n *network) {
		p := newPair(t, n, Config{})
		var bulk []*Conn
		for range 4 {
			from, to := p.dial(t)
			bulk = append(bulk, from)
			go func() { _, _ = io.Copy(io.Discard, to) }()
			go func() {
				b := make([]byte, 1<<20)
				for {
					if _, err := from.Write(b); err != nil {
						return
					}
				}
			}()
		}
		sent := func() (sum uint64) {
			for _, c := range bulk {
				c.mu.Lock()
				sum += c.out.done
				c.mu.Unlock()
			}
			return sum
		}
		here, there := p.dial(t)
		go func() { _, _ = io.Copy(there, there) }()
		const window = 8 << 20
		pings := 200
		if raceEnabled {
			pings = 20 // it is slow
		}
		median, p99 := ping(t, here, pings, sent)
		t.Logf("bulk bytes during a ping: median %d KiB, p99 %d KiB", median>>10, p99>>10)
		if sent() == 0 || median > window {
			t.Errorf("half of the pings waited for more than %d bytes", median)
		}
	})
}

// ping sends short messages and waits for their echoes. It returns the median and the 99th
// percentile of the bytes that others send during one.
func ping(t *testing.T, c *Conn, pings int, sent func() uint64) (median, p99 uint64) {
	t.Helper()
	var waits []uint64
	b := make([]byte, 8)
	for range pings {
		before := sent()
		_, err := c.Write(b)
		wantOK(t, "Write", err)
		_, err = io.ReadFull(c, b)
		wantOK(t, "Read", err)
		waits = append(waits, sent()-before)
	}
	slices.Sort(waits)
	return waits[pings/2], waits[pings*99/100]
}
