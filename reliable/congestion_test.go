package reliable_test

import (
	"testing"
	"time"

	"ibverbx/reliable"
	"ibverbx/softnic"
)

// TestShortQueue: four senders share the port of one receiver, without settings. Once they have started, the queue
// is short and the port is busy.
func TestShortQueue(t *testing.T) {
	const senders, size, rate = 4, 16 << 20, 12.5e9
	run := func(cfg reliable.Config) (queue int, took int64) {
		s := newStar(t, softnic.Impairment{Delay: 5 * time.Microsecond, Rate: rate}, cfg, senders, rate, size)
		for i := range senders {
			s.write(t, i, size)
		}
		s.until(t, s.now+int64(2*time.Millisecond), 0)
		must(t, s.link.Bottleneck(s.to.nic, rate, 1<<30)) // count again
		for _, wc := range s.until(t, int64(time.Second), senders) {
			must(t, wc.Err())
		}
		return s.link.LongestQueue(s.to.nic), s.now
	}
	fixed, _ := run(reliable.Config{NoCredits: true, WindowBytes: 4 << 20})
	queue, took := run(reliable.Config{NoCredits: true})
	t.Logf("queue of %d bytes with fixed windows, of %d by default, in %d us", fixed, queue, took/1000)
	if 4*queue > fixed {
		t.Errorf("a queue of %d bytes, and of %d with fixed windows: want a quarter", queue, fixed)
	}
	if ideal := float64(senders*size) / rate * 1e9; float64(took) > ideal/0.9 {
		t.Errorf("took %d ns, want at most %.0f: 0.9 of the rate of the port", took, ideal/0.9)
	}
}
