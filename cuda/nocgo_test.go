//go:build !(linux && cgo && !386 && !arm && !mips && !mipsle)

package cuda_test

import (
	"errors"
	"testing"

	"ibverbx/cuda"
	"ibverbx/verbs"
)

func child() bool { return false }

// TestNotSupported: a build without libcuda returns ErrNotSupported.
func TestNotSupported(t *testing.T) {
	_, err := cuda.Open(0)
	if !errors.Is(err, verbs.ErrNotSupported) || !errors.Is(err, cuda.ErrNoDriver) {
		t.Errorf("Open = %v, want ErrNoDriver", err)
	}
	if _, err := cuda.Devices(); !errors.Is(err, cuda.ErrNoDriver) {
		t.Errorf("Devices = %v, want ErrNoDriver", err)
	}
}
