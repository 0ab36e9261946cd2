package xorshift_test

import (
	"slices"
	"testing"

	"ibverbx/internal/xorshift"
)

// Simulations and test data depend on these numbers.
func TestSource(t *testing.T) {
	s := xorshift.Source(1)
	got := []uint64{s.Next(), s.Next(), s.Next()}
	if want := []uint64{0x40822041, 0x100041060c011441, 0x9b1e842f6e862629}; !slices.Equal(got, want) {
		t.Errorf("Next = %#x, want %#x", got, want)
	}
}
