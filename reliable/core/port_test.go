package core

import (
	"fmt"
	"testing"
)

// portLink is a link to a Port with senders that always have data to send: granted bytes arrive after a round
// trip, or behind the bytes before them.
type portLink struct {
	p     *Pacer
	rate  float64 // bytes per nanosecond
	rtt   int64
	now   int64
	free  int64 // when the link is free
	queue []linkChunk
	sums  [4]uint64 // bytes in flight per connection
}

type linkChunk struct {
	at   int64
	conn int
	n    uint64
}

// run moves a number of chunks.
func (l *portLink) run(chunks int) {
	for range chunks {
		for conn, n, ok := l.p.Next(l.now); ok; conn, n, ok = l.p.Next(l.now) {
			if n == NoLimit || n == 0 {
				continue
			}
			l.free = max(l.free, l.now+l.rtt) + int64(float64(n)/l.rate)
			l.sums[conn] += uint64(n)
			l.queue = append(l.queue, linkChunk{l.free, conn, uint64(n)})
		}
		c := l.queue[0]
		l.queue = l.queue[1:]
		l.now = c.at
		l.sums[c.conn] -= c.n
		l.p.Want(l.now, c.conn, demand(1<<40, l.sums[c.conn], c.n))
	}
}

// TestPortFindsWindow: the window converges to the bandwidth-delay product and stays there. The rate of the
// last rounds is the link's.
func TestPortFindsWindow(t *testing.T) {
	for _, rate := range []float64{1.25, 12.5, 50} {
		for _, rtt := range []int64{10_000, 20_000, 200_000} {
			t.Run(fmt.Sprintf("%v GB/s, %d us", rate, rtt/1000), func(t *testing.T) {
				l := newPortLink(rate, rtt)
				l.run(20_000)
				carries := max(rate*float64(rtt), leastWindow)
				start := l.now
				for range 20 {
					l.run(500)
					if w := l.p.port.window; w < 0.9*carries || w > 2*carries+2*32<<10 {
						t.Fatalf("the window is %.0f bytes, want %.0f to twice as much", w, carries)
					}
				}
				if share := float64(20*500*32<<10) / float64(l.now-start) / rate; share < 0.97 {
					t.Fatalf("%.3f of the link is used, want at least 0.97", share)
				}
			})
		}
	}
}

// TestPortFollowsLink: the link becomes four times slower, then fast again. The window follows.
func TestPortFollowsLink(t *testing.T) {
	l := newPortLink(12.5, 20_000)
	for _, rate := range []float64{12.5, 12.5 / 4, 12.5} {
		l.rate = rate
		l.run(10_000)
		if w, carries := l.p.port.window, rate*float64(l.rtt); w < 0.9*carries || w > 2*carries+2*32<<10 {
			t.Fatalf("the window is %.0f bytes at %v bytes per ns, want %.0f to twice as much", w, rate, carries)
		}
	}
}

// TestPortHoldsBack: while many ungranted bytes arrive, no more are granted, and the window is used again
// afterwards.
func TestPortHoldsBack(t *testing.T) {
	port := NewPort()
	port.arrived(1, &peer{}, 1<<20, 0, 1<<20)
	if w := port.share(1); w != 0 {
		t.Fatalf("%.0f bytes may be in flight while bytes arrive without credit, want 0", w)
	}
	for range 8 {
		port.arrived(2, &peer{}, 32<<10, 32<<10, 0)
	}
	if w := port.share(1); w != firstWindow {
		t.Fatalf("%.0f bytes may be in flight after as many expected ones, want %d", w, firstWindow)
	}
}

func newPortLink(rate float64, rtt int64) *portLink {
	l := &portLink{p: NewPacer(NewPort(), 32<<10, 128<<10), rate: rate, rtt: rtt, now: 1}
	for i := range l.sums {
		l.p.Join(i, Peer{byte(i)})
	}
	l.p.Next(l.now)
	for i := range l.sums {
		l.p.Want(l.now, i, demand(1<<40, 0, 0))
	}
	return l
}
