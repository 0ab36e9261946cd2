package shm

import "sync/atomic"

// Bell wakes the peer if it sleeps. To sleep, a side reads the peer's ring count, makes its own
// word odd, and checks once more for work. Only then does it wait for the count to change. The peer
// does its work first and then reads the word. Either the sleeper sees the work or the peer sees
// the sleeper.
type Bell struct {
	// rings counts the rings of this side. The peer waits for it to change.
	rings *atomic.Uint32
	// asleep is odd while this side sleeps.
	asleep *atomic.Uint32
	// theirRings and theirAsleep are the peer's words.
	theirRings, theirAsleep *atomic.Uint32
	// rung is the value of theirAsleep at the last ring. One ring is enough for one sleep.
	rung uint32
}

// BellSize is the number of segment bytes used by a Bell.
const BellSize = 2 * CacheLine

// Init places b at the beginning of own and of peers, a part of the peer's segment.
func (b *Bell) Init(own, peers []byte) {
	b.rings, b.asleep = Word32(own, 0), Word32(own, CacheLine)
	b.theirRings, b.theirAsleep = Word32(peers, 0), Word32(peers, CacheLine)
}

// Ring wakes the peer if it sleeps. Calls must not overlap.
func (b *Bell) Ring() {
	if a := b.theirAsleep.Load(); a&1 == 1 && a != b.rung {
		b.rung = a
		b.rings.Add(1)
		wake(b.rings)
	}
}

// Sleep sleeps until the peer rings, unless busy finds work. Only one goroutine may sleep.
func (b *Bell) Sleep(busy func() bool) {
	rings := b.theirRings.Load()
	b.asleep.Add(1)
	if !busy() {
		wait(b.theirRings, rings)
	}
	b.asleep.Add(1)
}

// Asleep reports whether the peer sleeps.
func (b *Bell) Asleep() bool { return b.theirAsleep.Load()&1 == 1 }

// Doze marks this side as asleep. It is for a side that waits for another event than a ring, and the
// caller must check once more for work before it waits.
func (b *Bell) Doze() {
	if b.asleep.Load()&1 == 0 {
		b.asleep.Add(1)
	}
}

// Rise undoes Doze.
func (b *Bell) Rise() {
	if b.asleep.Load()&1 == 1 {
		b.asleep.Add(1)
	}
}

// Disturb wakes a goroutine of this side from Sleep. It has no effect on one that is about to wait, so the
// caller must repeat it until Sleep has returned.
func (b *Bell) Disturb() { wake(b.theirRings) }
