package rdmacore

import (
	"fmt"

	"ibverbx/verbs"
)

// DefaultLibrary is the library name that Load passes to the dynamic linker.
const DefaultLibrary = "libibverbs.so.1"

// Config configures access to libibverbs. The zero value means the system's library.
type Config struct {
	// Library is the file to open instead of DefaultLibrary: a path, or a name for the dynamic linker to
	// search.
	Library string
	// ForkSafe calls ibv_fork_init(3) first, which makes every registration slower. It is
	// needed if C code in the process forks without exec on kernels before 5.12.
	ForkSafe bool
	// PlainCQ selects plain CQs even if the device supports extended ones (ibv_create_cq_ex(3)), except
	// for CQs with timestamps. Both behave alike; their relative speed depends on the driver. See the
	// package comment.
	PlainCQ bool
}

func (c *Config) library() string {
	if c.Library == "" {
		return DefaultLibrary
	}
	return c.Library
}

// Reasons why no device can be opened. Test with errors.Is; the wrapping error has the details.
var (
	// ErrNoLibrary means that libibverbs could not be opened.
	ErrNoLibrary = fmt.Errorf("%w: libibverbs cannot be opened", verbs.ErrNotSupported)
	// ErrOldLibrary means that libibverbs lacks a function present since 2006.
	ErrOldLibrary = fmt.Errorf("%w: libibverbs is too old", verbs.ErrNotSupported)
	// ErrNoDevice means that libibverbs works but lists no RDMA device.
	ErrNoDevice = fmt.Errorf("%w: no RDMA device", verbs.ErrNotFound)
)
