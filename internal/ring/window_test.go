package ring_test

import (
	"testing"

	"ibverbx/internal/ring"
)

// TestWindow: values keep their numbers while the window grows and its base advances, even where
// numbers wrap, and numbers beyond the limit are outside.
func TestWindow(t *testing.T) {
	w := ring.NewWindow[uint32](3, 60)
	if w.Len() != 4 || w.Limit() != 64 {
		t.Fatalf("a window of 3 to 60 has %d to %d values, want 4 to 64", w.Len(), w.Limit())
	}
	base := ^uint32(0) - 40
	for _, n := range []uint32{3, 7, 30, 64, 64} { // each is filled from its end and emptied from its base
		for ahead := n - 1; ahead > 0; ahead-- {
			if !w.Reach(base, ahead) {
				t.Fatalf("number %d is not in the window", ahead)
			}
			*w.At(base + ahead) = base + ahead + 1
		}
		if w.Reach(base, 64) {
			t.Error("number 64 is in a window of 64")
		}
		for base++; n > 1; base, n = base+1, n-1 {
			if v := *w.At(base); v != base+1 {
				t.Fatalf("value of %d = %d, want %d", base, v, base+1)
			}
			*w.At(base) = 0
		}
	}
	if w.Len() != 64 {
		t.Errorf("the window has space for %d values, want 64", w.Len())
	}
}
