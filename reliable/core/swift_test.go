package core

import (
	"testing"

	"pgregory.net/rapid"
)

// TestSwiftGrows: the window doubles until the first cut, then grows by one step per round trip, however the
// acknowledgements are batched, up to the maximum.
func TestSwiftGrows(t *testing.T) {
	for _, acks := range []int{1, 4, 16} {
		s := NewSwift(50_000, 1, 1000, 20_000)
		if s.OnAck(0, 2000, 20_000, 20_000); s.Window() != 4000 {
			t.Errorf("the window is %d after 2000 bytes, want 4000", s.Window())
		}
		s.OnLoss(1, 1000, false)
		for trip := range 10 {
			before := s.Window()
			for range acks {
				s.OnAck(int64(trip)*20_000, before/acks, 20_000, 20_000)
			}
			got, want := s.Window()-before, swiftStep*1000
			if before+want > 20_000 {
				want = 20_000 - before
			}
			if got < want*3/5 || got > want {
				t.Errorf("%d acknowledgements, round trip %d: %d bytes more than %d, want %d", acks, trip, got, before, want)
			}
		}
	}
}

// TestSwiftShrinks: the window decreases once per round trip, in proportion to the excess over the target and
// by at most half, down to a fraction of a chunk.
func TestSwiftShrinks(t *testing.T) {
	s := NewSwift(50_000, 1, 1000, 1<<20)
	s.OnAck(0, 14_000, 50_000, 20_000)
	s.OnAck(0, 0, 100_000, 20_000) // twice the target: 0.8 of the half that is beyond
	if got := s.Window(); got != 9600 {
		t.Fatalf("the window is %d, want 9600 of 16000", got)
	}
	for now := int64(1); now < 100_000; now += 1000 {
		s.OnAck(now, 1000, 100_000, 20_000)
		s.OnLoss(now, 1000, false)
	}
	if got := s.Window(); got != 9600 {
		t.Fatalf("the window is %d within a round trip, want 9600 still", got)
	}
	s.OnAck(1_000_000, 1000, 1_000_000, 20_000)
	if got := s.Window(); got != 4800 {
		t.Fatalf("the window is %d after a very long round trip, want the half of 9600", got)
	}
	s.OnLoss(2_000_000, 1000, false)
	if got := s.Window(); got != 2400 {
		t.Fatalf("the window is %d after a loss, want 2400", got)
	}
	s.OnLoss(4_000_000, 1000, true)
	if got := s.Window(); got != 500 {
		t.Fatalf("the window is %d after a timeout, want half a chunk", got)
	}
}

// TestSwiftGap: no gap while the window holds a chunk; below that, one chunk per the time in which the window
// allows it.
func TestSwiftGap(t *testing.T) {
	s := NewSwift(50_000, 1, 1000, 1<<20)
	s.OnAck(0, 0, 40_000, 20_000)
	if got := s.Gap(1000); got != 0 {
		t.Errorf("a gap of %d with a window of two chunks, want none", got)
	}
	s.OnLoss(0, 1000, true)
	if full, small := s.Gap(1000), s.Gap(100); full != 80_000 || small != 8_000 {
		t.Errorf("a gap of %d after a chunk and of %d after a tenth, want 80000 and 8000: two round trips with half a chunk", full, small)
	}
}

// TestSwiftFar: a path longer than the target gets as much queue space.
func TestSwiftFar(t *testing.T) {
	s := NewSwift(50_000, 1, 1000, 1<<20)
	s.OnAck(0, 1000, 230_000, 200_000)
	if got := s.Window(); got != 3000 {
		t.Errorf("the window is %d after a round trip of 230 us, where the least is 200, want 3000: it grows", got)
	}
	if s.OnAck(1, 1000, 300_000, 200_000); s.Window() >= 3000 {
		t.Errorf("the window is %d after a round trip of 300 us, where the least is 200, want less than 3000", s.Window())
	}
}

// TestSwiftBounds: the window stays between minimum and maximum, and the gap is never negative, whatever
// happens.
func TestSwiftBounds(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		chunk, most := rapid.IntRange(16, 1<<18).Draw(rt, "chunk"), rapid.IntRange(1, 1<<24).Draw(rt, "most")
		paths := rapid.IntRange(1, 256).Draw(rt, "paths")
		s := NewSwift(rapid.Int64Range(1, 1e9).Draw(rt, "target"), paths, chunk, most)
		now := int64(0)
		for range rapid.IntRange(0, 100).Draw(rt, "events") {
			now += rapid.Int64Range(0, 1e9).Draw(rt, "wait")
			bytes := rapid.IntRange(0, 1<<24).Draw(rt, "bytes")
			switch rapid.IntRange(0, 2).Draw(rt, "what") {
			case 0:
				s.OnAck(now, bytes, rapid.Int64Range(0, 1e12).Draw(rt, "rtt"), rapid.Int64Range(1, 1e12).Draw(rt, "least"))
			case 1:
				s.OnLoss(now, bytes, rapid.Bool().Draw(rt, "timeout"))
			}
			if w := s.Window(); w < chunk/paths/2-1 || w > max(2*chunk, most) {
				rt.Fatalf("the window is %d, want %d to %d", w, chunk/paths/2, max(2*chunk, most))
			}
			if g := s.Gap(chunk); g < 0 || (g > 0 && s.Window() >= chunk) {
				rt.Fatalf("a gap of %d with a window of %d", g, s.Window())
			}
		}
	})
}
