package stream

import (
	"testing"

	"ibverbx/internal/service"
)

// shy is a service.Peer that counts how often it is driven.
type shy struct {
	service.Peer
	helped int
	// answer is called each time.
	answer func(helped int)
}

func (s *shy) Help() bool {
	if s.helped++; s.answer != nil {
		s.answer(s.helped)
	}
	return true
}

// TestPatience: a reader polls until its answer is there, and goes on with that as long as it finds answers. A token of before is no answer. One reader
// polls at a time, and a writer never does.
func TestPatience(t *testing.T) {
	s, wake := &shy{}, make(chan struct{}, 1)
	p := &peer{service: s}
	help := func(what string, patient *patience, want int) {
		t.Helper()
		s.helped = 0
		p.help(patient, wake)
		if s.helped != want {
			t.Errorf("%s: driven %d times, want %d", what, s.helped, want)
		}
	}
	var reader, other patience
	help("a writer", nil, 1)
	s.answer = func(helped int) {
		if helped == 10 {
			signal(wake)
		}
	}
	for range 3 * pollAgain { // the token of the last one is still there
		help("a reader whose answers come soon", &reader, 10)
	}
	s.answer = nil
	for range 2 {
		help("a reader without an answer", &reader, polls)
		for range pollAgain {
			help("a reader after that", &reader, 1)
		}
	}
	p.polled.Store(true)
	help("a reader beside one that polls", &other, 1)
	p.polled.Store(false)
	help("a reader when that one is done", &other, polls)
}
