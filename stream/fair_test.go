package stream

import (
	"io"
	"slices"
	"testing"
)

// TestBulkAndPing: while streams carry as much as they can, a short message on another one waits behind at most a window of their bytes, which
// is 8 MiB unless node.Config says otherwise. What counts is bytes, because time depends on the machine.
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
		var waits []uint64
		b := make([]byte, 8)
		pings := 200
		if raceEnabled {
			pings = 20 // it is slow
		}
		for range pings {
			before := sent()
			_, err := here.Write(b)
			wantOK(t, "Write", err)
			_, err = io.ReadFull(here, b)
			wantOK(t, "Read", err)
			waits = append(waits, sent()-before)
		}
		slices.Sort(waits)
		median, p99 := waits[pings/2], waits[pings*99/100]
		t.Logf("bulk bytes during a ping: median %d KiB, p99 %d KiB", median>>10, p99>>10)
		const window = 8 << 20
		if sent() == 0 || median > window || p99 > 4*window { // a busy machine may keep the ping waiting for a processor
			t.Errorf("a ping waited for %d bytes, and one of a hundred for %d", median, p99)
		}
	})
}
