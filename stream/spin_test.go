package stream

import (
	"testing"

	"ibverbx/internal/service"
)

// shy is a service.Peer that counts its Help and Leave calls.
type shy struct {
	service.Peer
	helped, left int
	// answer is called by Help, with the count.
	answer func(helped int)
}

func (s *shy) Help() bool {
	if s.helped++; s.answer != nil {
		s.answer(s.helped)
	}
	return true
}

func (s *shy) Leave() { s.left++ }

// TestSpinPolicy: a reader polls until its response arrives, and keeps polling as long as responses
// arrive. Only one reader polls at a time, and a writer never does. A reader without a response
// leaves the shard before it sleeps.
func TestSpinPolicy(t *testing.T) {
	s, found := &shy{}, false
	p := &peer{service: s}
	drive := func(what string, spin *spinPolicy, want int) {
		t.Helper()
		s.helped, s.left, found = 0, 0, false
		p.drive(spin, func() bool { return found })
		if left := s.left == 1; s.helped != want || left == found {
			t.Errorf("%s: driven %d times and left %d times, want %d and left only without an answer", what, s.helped, s.left, want)
		}
	}
	var reader, other spinPolicy
	drive("a writer", nil, 1)
	s.answer = func(helped int) { found = helped == 10 }
	for range 3 * skipWaits {
		drive("a reader whose answers come soon", &reader, 10)
	}
	s.answer = nil
	for range 2 {
		drive("a reader without an answer", &reader, service.Rounds)
		for range skipWaits {
			drive("a reader after that", &reader, 1)
		}
	}
	p.polled.Store(true)
	drive("a reader beside one that polls", &other, 1)
	p.polled.Store(false)
	drive("a reader when that one is done", &other, service.Rounds)
}
