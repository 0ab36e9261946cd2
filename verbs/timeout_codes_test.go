package verbs_test

import (
	"testing"
	"time"

	"ibverbx/verbs"
)

// IBTA volume 1, table "Encoding for RNR NAK Timer Field", in microseconds.
var rnrMicroseconds = [32]int{
	655360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1280, 1920,
	2560, 3840, 5120, 7680, 10240, 15360, 20480, 30720, 40960, 61440, 81920, 122880, 163840, 245760, 327680, 491520,
}

func TestRNRTimer(t *testing.T) {
	for code, us := range rnrMicroseconds {
		if got, want := verbs.RNRTimer(uint8(code)), time.Duration(us)*time.Microsecond; got != want {
			t.Errorf("RNRTimer(%d) = %v, want %v", code, got, want)
		}
	}
	if got, want := verbs.RNRTimer(32+12), verbs.RNRTimer(12); got != want {
		t.Errorf("RNRTimer looks at more than five bits: %v, want %v", got, want)
	}
}

func TestAckTimeout(t *testing.T) {
	tests := map[uint8]time.Duration{
		0:  0,
		1:  8192 * time.Nanosecond,
		2:  16384 * time.Nanosecond,
		14: 67108864 * time.Nanosecond,
		18: 1073741824 * time.Nanosecond,
		31: 8796093022208 * time.Nanosecond,
	}
	for code, want := range tests {
		if got := verbs.AckTimeout(code); got != want {
			t.Errorf("AckTimeout(%d) = %v, want %v", code, got, want)
		}
	}
}

// The defaults have the documented durations.
func TestDefaultTimers(t *testing.T) {
	if got := verbs.AckTimeout(verbs.DefaultTimeout).Round(time.Millisecond); got != 67*time.Millisecond {
		t.Errorf("default timeout is %v, want about 67ms", got)
	}
	if got := verbs.RNRTimer(verbs.DefaultMinRNRTimer); got != 640*time.Microsecond {
		t.Errorf("default RNR timer is %v, want 640µs", got)
	}
}
