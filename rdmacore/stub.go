//go:build !(linux && cgo && !386 && !arm && !mips && !mipsle)

package rdmacore

import (
	"fmt"
	"runtime"

	"ibverbx/verbs"
)

// Library is libibverbs. This build does not support it.
type Library struct{}

// Device is an RDMA device. This build does not support any.
type Device struct{}

var _ verbs.Device = (*Device)(nil)

// unsupported returns the error of builds without libibverbs.
func unsupported(op string) error {
	why := "the program was built without cgo (CGO_ENABLED=0) or for a 32-bit system"
	if runtime.GOOS != "linux" {
		why = "libibverbs exists only on Linux, this is " + runtime.GOOS
	}
	return verbs.NewOpError(op, "", 0, fmt.Errorf("%w: %s; use softnic", verbs.ErrNotSupported, why))
}

// Load returns an error that explains why this build cannot use libibverbs.
func Load(Config) (*Library, error) { return nil, unsupported("load libibverbs") }

// Path is empty.
func (*Library) Path() string { return "" }

// Devices returns the error of Load.
func (*Library) Devices() ([]*Device, error) { return nil, unsupported("list devices") }

// Close has no effect.
func (*Library) Close() error { return nil }

// Name is empty.
func (*Device) Name() string { return "" }

// GUID is zero.
func (*Device) GUID() verbs.GUID { return 0 }

// Driver is empty.
func (*Device) Driver() string { return "" }

// Open returns the error of Load.
func (*Device) Open() (verbs.Context, error) { return nil, unsupported("open device") }
