package broadcast

import (
	"sync"
	"testing"
)

// TestSignal: Raise closes the channels returned before, and no later one.
func TestSignal(t *testing.T) {
	var s Signal
	s.Raise() // without a waiter
	first, again := s.Next(), s.Next()
	if first != again {
		t.Error("Next before Raise returns two channels, want one")
	}
	select {
	case <-first:
		t.Error("a channel of Next is closed before Raise")
	default:
	}
	s.Raise()
	<-first
	select {
	case <-s.Next():
		t.Error("a channel of Next after Raise is closed")
	default:
	}
}

// TestNoChangeIsMissed: goroutines wait for a counter that others increase. All of them see the final value.
func TestNoChangeIsMissed(*testing.T) {
	const steps = 1000
	var (
		mu    sync.Mutex
		s     Signal
		count int
		all   sync.WaitGroup
	)
	for range 4 {
		all.Go(func() {
			for {
				mu.Lock()
				done, next := count == steps, s.Next()
				mu.Unlock()
				if done {
					return
				}
				<-next
			}
		})
	}
	for range steps {
		mu.Lock()
		count++
		s.Raise()
		mu.Unlock()
	}
	all.Wait()
}

// TestWakeAndClosed: Wake never blocks and leaves one token. Closed distinguishes open and closed channels.
func TestWakeAndClosed(t *testing.T) {
	c, done := make(chan struct{}, 1), make(chan struct{})
	Wake(c)
	if Wake(c); len(c) != 1 {
		t.Errorf("two calls of Wake left %d tokens, want 1", len(c))
	}
	if Closed(done) {
		t.Error("Closed of an open channel = true")
	}
	if close(done); !Closed(done) {
		t.Error("Closed of a closed channel = false")
	}
}
