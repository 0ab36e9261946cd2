package service

import (
	"context"
	"runtime"
	"time"
)

// Rounds is the number of times a waiting goroutine drives the shard before it sleeps. A wake-up costs more than the response
// of a peer that has a processor to itself.
const Rounds = 64

// Pauses between two attempts of Await. The pause doubles from the first one to the last one.
const (
	minPause = 50 * time.Microsecond
	maxPause = time.Millisecond
)

// Drive is the first half of every wait for an event that a Peer's shard delivers. It drives the shard until done reports true, at
// most rounds times, and reports whether done did. Otherwise it leaves the shard to its own goroutine (Peer.Leave): the caller then
// sleeps until whatever done looks at is signaled. done may take locks and must be cheap. Drive must not be called with the shard's
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

// Await is Drive for conditions that are not signaled. It returns when done reports true, or with the cause of ctx. Between two
// rounds it sleeps at most 1 ms.
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
