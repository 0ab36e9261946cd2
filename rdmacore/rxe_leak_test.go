//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package rdmacore_test

import (
	"testing"

	"ibverbx/rdmacore"
)

// TestNoLeak on a kernel device, which also holds uverbs objects, pinned pages and mapped queues.
func TestNoLeakRXE(t *testing.T) {
	noLeak(t, rxeDevices(t, rdmacore.Config{})["rxe0"], 1000)
}
