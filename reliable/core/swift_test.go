package core

import (
	"testing"

	"pgregory.net/rapid"
)

// TestSwiftGrows wants one chunk more per round trip within the target, however the
// acknowledgements come, and none beyond the most.
func TestSwiftGrows(t *testing.T) {
	for _, acks := range []int{1, 4, 16} {
		s := NewSwift(50_000, 1000, 20_000)
		for trip := range 10 {
			before := s.Window()
			for range acks {
				s.OnAck(int64(trip)*20_000, before/acks, 20_000)
			}
			got, want := s.Window()-before, 1000
			if before+want > 20_000 {
				want = 20_000 - before
			}
			if got < want-100 || got > want {
				t.Errorf("%d acknowledgements, round trip %d: %d bytes more than %d, want %d", acks, trip, got, before, want)
			}
		}
	}
}

// TestSwiftShrinks wants one decrease per round trip, by how far it is beyond the target and by
// a half at the most, down to a chunk.
func TestSwiftShrinks(t *testing.T) {
	s := NewSwift(50_000, 1000, 1<<20)
	s.OnAck(0, 0, 100_000) // twice the target: 0.8 of the half that is beyond
	if got := s.Window(); got != 9600 {
		t.Fatalf("the window is %d, want 9600 of 16000", got)
	}
	for now := int64(1); now < 100_000; now += 1000 {
		s.OnAck(now, 1000, 100_000)
		s.OnLoss(now, 1000, false)
	}
	if got := s.Window(); got != 9600 {
		t.Fatalf("the window is %d within a round trip, want 9600 still", got)
	}
	s.OnAck(1_000_000, 1000, 1_000_000)
	if got := s.Window(); got != 4800 {
		t.Fatalf("the window is %d after a very long round trip, want the half of 9600", got)
	}
	s.OnLoss(2_000_000, 1000, false)
	if got := s.Window(); got != 2400 {
		t.Fatalf("the window is %d after a loss, want 2400", got)
	}
	s.OnLoss(4_000_000, 1000, true)
	if got := s.Window(); got != 1000 {
		t.Fatalf("the window is %d after a timeout, want one chunk", got)
	}
}

// TestSwiftBounds wants a window of a chunk to the most, whatever happens.
func TestSwiftBounds(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		chunk, most := rapid.IntRange(16, 1<<18).Draw(rt, "chunk"), rapid.IntRange(1, 1<<24).Draw(rt, "most")
		s := NewSwift(rapid.Int64Range(1, 1e9).Draw(rt, "target"), chunk, most)
		now := int64(0)
		for range rapid.IntRange(0, 100).Draw(rt, "events") {
			now += rapid.Int64Range(0, 1e9).Draw(rt, "wait")
			bytes := rapid.IntRange(0, 1<<24).Draw(rt, "bytes")
			switch rapid.IntRange(0, 2).Draw(rt, "what") {
			case 0:
				s.OnAck(now, bytes, rapid.Int64Range(0, 1e12).Draw(rt, "rtt"))
			case 1:
				s.OnLoss(now, bytes, rapid.Bool().Draw(rt, "timeout"))
			}
			if w := s.Window(); w < chunk || w > max(chunk, most) {
				rt.Fatalf("the window is %d, want %d to %d", w, chunk, max(chunk, most))
			}
		}
	})
}
