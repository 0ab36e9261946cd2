package broadcast

import (
	"sync"
	"testing"
)

// TestSignal: Raise closes the channels of those who wait, and no later one.
func TestSignal(t *testing.T) {
	var s Signal
	s.Raise() // nobody waits
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

// TestNoChangeIsMissed: goroutines wait for a counter that others increase. All of them see its end.
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
