package service

import (
	"context"
	"runtime"
	"time"
)

// Rounds is the number of times a waiting goroutine drives the shard before it sleeps. A wake-up
// costs more than a response from a peer with a CPU to itself.
const Rounds = 64

// Await sleeps between two attempts, doubling from the first value to the last.
const (
	minPause = 50 * time.Microsecond
	maxPause = time.Millisecond
)

// Drive is the first half of every wait for an event from a Peer's shard. It drives the shard until
// done reports true, at most rounds times, and returns the last result of done. If that is false,
// it leaves the shard to its own goroutine (Peer.Leave), and the caller sleeps until it is
// signaled. done may acquire locks and must be cheap. Drive must not be called with the shard's
// lock, and does not allocate.
func Drive(p Peer, rounds int, done func() bool) bool {
	for range rounds {
		if done() {
			return true
		}
		if !p.Help() {
			runtime.Gosched()
		}
	}
	if done() {
		return true
	}
	p.Leave()
	return false
}

// Await is Drive for conditions without a signal. It returns nil when done reports true, or the
// cause of ctx. Between two rounds it sleeps at most 1 ms.
func Await(ctx context.Context, p Peer, done func() bool) error {
	for pause := minPause; !Drive(p, 1, done); pause = min(2*pause, maxPause) {
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
	}
	return nil
}
