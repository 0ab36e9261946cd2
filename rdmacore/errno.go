//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package rdmacore

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"ibverbx/verbs"
)

// errnoError is an errno of a verb together with the sentinel of package verbs that a caller
// can act on. errors.Is finds both.
type errnoError struct {
	errno    syscall.Errno
	sentinel error
}

func (e *errnoError) Error() string {
	return fmt.Sprintf("%s: %s (%s)", e.sentinel, e.errno.Error(), unix.ErrnoName(e.errno))
}

func (e *errnoError) Unwrap() []error { return []error{e.sentinel, e.errno} }

// errDriver is the sentinel for errnos without a more specific meaning.
var errDriver = errors.New("the driver refused")

// sentinels maps errnos of control verbs to errors of package verbs. Drivers differ: a
// missing feature is ENOSYS, EOPNOTSUPP or EPROTONOSUPPORT, and an exhausted resource is
// ENOMEM, ENOSPC or EAGAIN.
var sentinels = map[syscall.Errno]error{
	unix.EINVAL:          verbs.ErrInvalid,
	unix.ERANGE:          verbs.ErrInvalid,
	unix.EBUSY:           verbs.ErrBusy,
	unix.ENOMEM:          verbs.ErrLimit,
	unix.ENOSPC:          verbs.ErrLimit,
	unix.EAGAIN:          verbs.ErrLimit,
	unix.EMFILE:          verbs.ErrLimit,
	unix.ENFILE:          verbs.ErrLimit,
	unix.E2BIG:           verbs.ErrLimit,
	unix.ENOSYS:          verbs.ErrNotSupported,
	unix.EOPNOTSUPP:      verbs.ErrNotSupported,
	unix.EPROTONOSUPPORT: verbs.ErrNotSupported,
	unix.ENOTTY:          verbs.ErrNotSupported,
	unix.ENOENT:          verbs.ErrNotFound,
	unix.ENODEV:          verbs.ErrNotFound,
	unix.ENODATA:         verbs.ErrNotFound,
	unix.ENXIO:           verbs.ErrNotFound,
	unix.EIO:             verbs.ErrDeviceFatal,
}

// errnoErr returns an errno of a control verb as an error, or nil for 0.
func errnoErr(errno syscall.Errno) error {
	if errno == 0 {
		return nil
	}
	s, ok := sentinels[errno]
	if !ok {
		s = errDriver
	}
	return &errnoError{errno: errno, sentinel: s}
}

// queueFull reports whether a post stopped because the queue is full. Drivers return ENOMEM,
// some EAGAIN or ENOSPC. Other causes of these errnos, such as too many inline bytes, are
// excluded before a driver sees the request.
func queueFull(errno syscall.Errno) bool {
	return errno == unix.ENOMEM || errno == unix.EAGAIN || errno == unix.ENOSPC
}

// noDeviceList explains why the library cannot list devices.
func noDeviceList(errno syscall.Errno) error {
	switch errno {
	case unix.ENOSYS, unix.ENOENT:
		return fmt.Errorf("%w: the kernel has no RDMA support loaded (%s): modprobe ib_uverbs and the driver of the NIC, or rdma_rxe", ErrNoDevice, unix.ErrnoName(errno))
	case unix.EPERM, unix.EACCES:
		return fmt.Errorf("%w: no permission to look for devices (%s): /sys/class/infiniband_verbs and /dev/infiniband must be readable", ErrNoDevice, unix.ErrnoName(errno))
	default:
		return fmt.Errorf("%w: %w", ErrNoDevice, errnoErr(errno))
	}
}

// openError explains why a device cannot be opened.
func openError(errno syscall.Errno) error {
	err := errnoErr(errno)
	switch errno {
	case unix.EPERM, unix.EACCES:
		return fmt.Errorf("%w: the process may not open /dev/infiniband/uverbs*: run as a member of its group, or pass the device into the container", err)
	case unix.ENOENT, unix.ENODEV, unix.ENXIO:
		return fmt.Errorf("%w: /dev/infiniband/uverbs* is missing: load ib_uverbs, or pass the device into the container", err)
	default:
		return err
	}
}

// registerError explains why memory cannot be registered. The usual reason is the limit on
// locked memory, because registered pages are locked.
func registerError(errno syscall.Errno, length uint64) error {
	err := errnoErr(errno)
	switch errno {
	case unix.ENOMEM, unix.EAGAIN, unix.EPERM:
	default:
		return err
	}
	limit := "unknown"
	var r unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &r) == nil {
		if limit = fmt.Sprintf("%d bytes", r.Cur); r.Cur == unix.RLIM_INFINITY {
			limit = "none"
		}
	}
	return fmt.Errorf("%w: registered memory is locked, and %d bytes may exceed the limit on that (RLIMIT_MEMLOCK, now %s): "+
		"raise it with ulimit -l unlimited, LimitMEMLOCK=infinity in a systemd unit, --ulimit memlock=-1 for a container, or grant CAP_IPC_LOCK", err, length, limit)
}
