package shm

import "sync/atomic"

// Bell wakes the peer if it sleeps. A side sleeps by three steps: it reads the peer's count of rings, it
// makes its own word odd, and it looks once more for something to do. Only then it waits for the count to
// change. The peer first does its work, then it looks at the word. So either the sleeper sees the work or
// the peer sees the sleeper.
type Bell struct {
	// rings counts how often this side has rung. The peer waits for it to change.
	rings *atomic.Uint32
	// asleep is odd while this side sleeps.
	asleep *atomic.Uint32
	// theirs are the same words of the peer.
	theirRings, theirAsleep *atomic.Uint32
	// rung is theirAsleep when this side last rang. One ring is enough for one sleep.
	rung uint32
}

// BellSize is how many bytes of a segment a Bell uses.
const BellSize = 2 * Line

// Init makes b use the beginning of own, and of peer's, a part of the peer's segment.
func (b *Bell) Init(own, peers []byte) {
	b.rings, b.asleep = Word32(own, 0), Word32(own, Line)
	b.theirRings, b.theirAsleep = Word32(peers, 0), Word32(peers, Line)
}

// Ring wakes the peer if it sleeps. Calls must not overlap.
func (b *Bell) Ring() {
	if a := b.theirAsleep.Load(); a&1 == 1 && a != b.rung {
		b.rung = a
		b.rings.Add(1)
		wake(b.rings)
	}
}

// Sleep sleeps until the peer rings, unless busy finds something to do. Only one goroutine may sleep.
func (b *Bell) Sleep(busy func() bool) {
	rings := b.theirRings.Load()
	b.asleep.Add(1)
	if !busy() {
		wait(b.theirRings, rings)
	}
	b.asleep.Add(1)
}

// Disturb ends a Sleep that has begun to wait. It may come too early: the caller repeats it.
func (b *Bell) Disturb() { wake(b.theirRings) }
