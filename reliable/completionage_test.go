package reliable

import (
	"errors"
	"math"
	"testing"
)

// fakeClock is a device's clock of 250 MHz.
type fakeClock struct {
	ticks uint64
	err   error
	reads int
}

func (f *fakeClock) ReadClock() (ticks, hz uint64, err error) {
	f.reads++
	return f.ticks, 250_000_000, f.err
}

// TestCompletionAge: an age is the difference between the device's clock values in nanoseconds, extrapolated from
// the last reading, and 0 if it is implausible.
func TestCompletionAge(t *testing.T) {
	clock := &fakeClock{ticks: math.MaxUint64 - 10} // wraps soon
	s := cqDelay{device: clock}
	for _, tt := range []struct {
		name  string
		now   int64
		stamp uint64
		want  int64
		reads int
	}{
		{"at once", 1000, math.MaxUint64 - 10, 0, 1},
		{"25 ticks before", 1000, math.MaxUint64 - 35, 100, 1},
		{"later, extrapolated", 1300, math.MaxUint64 - 10, 300, 1},
		{"after the wrap", 2000, 9, 1000 - 80, 1},
		{"in the future", 1000, math.MaxUint64 - 5, 0, 1},
		{"of another age", 1000, 1 << 40, 0, 1},
		{"read again", 1000 + clockReread + 1, math.MaxUint64 - 11, 4, 2},
	} {
		if got := s.age(tt.now, tt.stamp); got != tt.want || clock.reads != tt.reads {
			t.Errorf("%s: age = %d after %d reads, want %d after %d", tt.name, got, clock.reads, tt.want, tt.reads)
		}
	}
	clock.err = errors.New("gone")
	for range 3 {
		if got := s.age(1<<40, 0); got != 0 || clock.reads != 3 {
			t.Errorf("age = %d after %d reads of a clock that fails, want 0 after 3", got, clock.reads)
		}
	}
	none := cqDelay{}
	if got := none.age(1, 1); got != 0 {
		t.Errorf("age = %d without a clock, want 0", got)
	}
}
