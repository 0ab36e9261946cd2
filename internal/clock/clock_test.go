package clock_test

import (
	"testing"

	"ibverbx/internal/clock"
)

func TestMonotonic(t *testing.T) {
	now := clock.Monotonic()
	a := now()
	if b := now(); a < 1 || b < a || b >= clock.Never {
		t.Errorf("got %d, then %d, want at least 1 and never less", a, b)
	}
}
