package reliable_test

import (
	"testing"
	"time"

	"ibverbx/reliable"
	"ibverbx/reliable/core"
	"ibverbx/softnic"
)

// TestSwiftActs: four senders share the port of one receiver. Once their windows have converged, the queue
// stays near the target and the port is busy.
func TestSwiftActs(t *testing.T) {
	const senders, size, rate, target = 4, 8 << 20, 12.5e9, 50_000
	run := func(cfg reliable.Config) (queue int, took int64) {
		s := newStar(t, softnic.Impairment{Delay: 5 * time.Microsecond, Rate: rate}, cfg, senders, rate, size)
		for i := range senders {
			s.write(t, i, size)
		}
		s.until(t, s.now+int64(time.Millisecond), 0)
		must(t, s.link.Bottleneck(s.to.nic, rate, 1<<30)) // count again
		for _, wc := range s.until(t, int64(time.Second), senders) {
			must(t, wc.Err())
		}
		return s.link.LongestQueue(s.to.nic), s.now
	}
	fixed, _ := run(reliable.Config{NoCredits: true})
	swift, took := run(reliable.Config{NoCredits: true, TargetDelay: target})
	t.Logf("queue of %d bytes with fixed windows, of %d with a target of %d us, in %d us", fixed, swift, target/1000, took/1000)
	// A round trip of 10 us leaves 40 us for the queue.
	if room := int(40e-6 * rate); swift > 2*room || 4*swift > fixed {
		t.Errorf("a queue of %d bytes, and of %d with fixed windows: want no more than twice the %d that the target leaves room for", swift, fixed, room)
	}
	if ideal := float64(senders*size) / rate * 1e9; float64(took) > ideal/0.9 {
		t.Errorf("took %d ns, want at most %.0f: 0.9 of the rate of the port", took, ideal/0.9)
	}
}

// slow is a Congestion that allows a part of a chunk and pauses long.
type slow struct{}

func (slow) OnAck(int64, int, int64, int64) {}
func (slow) OnLoss(int64, int, bool)        {}
func (slow) Window() int                    { return 1 }
func (slow) Gap(int) int64                  { return 100_000 }

// TestRateBelowChunk paces paths to one chunk per 100 us each, on a round trip of 10 us: 64 chunks on 4
// paths take 15 pauses.
func TestRateBelowChunk(t *testing.T) {
	const size = 64 * 32 << 10
	s := newStar(t, softnic.Impairment{Delay: 5 * time.Microsecond, Rate: 12.5e9}, reliable.Config{
		Paths: 4, Congestion: func() core.Congestion { return slow{} },
	}, 1, 12.5e9, size)
	s.write(t, 0, size)
	for _, wc := range s.until(t, int64(time.Second), 1) {
		must(t, wc.Err())
	}
	if s.now < 1_500_000 || s.now > 1_700_000 {
		t.Errorf("took %d us, want 1500 to 1700", s.now/1000)
	}
}
