package rdmacore

import (
	"fmt"

	"ibverbx/verbs"
)

// DefaultLibrary is the name that Load gives to the dynamic linker.
const DefaultLibrary = "libibverbs.so.1"

// Config says how to reach libibverbs. The zero value is the system's library.
type Config struct {
	// Library is the file to open instead of DefaultLibrary: a name, which the dynamic
	// linker looks for, or a path.
	Library string
	// ForkSafe calls ibv_fork_init(3) first. It costs time at every registration, and
	// is for C code in the process that forks without exec on kernels before 5.12.
	ForkSafe bool
	// PlainCQ makes plain CQs also where the device has extended ones (ibv_create_cq_ex(3)),
	// but for those with timestamps. They behave alike. What is faster depends on the driver:
	// a plain CQ is polled by one call for a batch, an extended one by a call for each
	// completion and one for each field that means something in it.
	PlainCQ bool
}

func (c *Config) library() string {
	if c.Library == "" {
		return DefaultLibrary
	}
	return c.Library
}

// Reasons for which there is no device to open. They are found by errors.Is, and what
// wraps them says more.
var (
	// ErrNoLibrary says that libibverbs could not be opened.
	ErrNoLibrary = fmt.Errorf("%w: libibverbs cannot be opened", verbs.ErrNotSupported)
	// ErrOldLibrary says that libibverbs lacks a function that it has had since 2006.
	ErrOldLibrary = fmt.Errorf("%w: libibverbs is too old", verbs.ErrNotSupported)
	// ErrNoDevice says that libibverbs is there and finds no RDMA device.
	ErrNoDevice = fmt.Errorf("%w: no RDMA device", verbs.ErrNotFound)
)
