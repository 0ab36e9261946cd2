package verbs

import (
	"errors"
	"fmt"
	"strings"
)

// Sentinel errors. Providers wrap them in an [OpError]; test with errors.Is. ErrQueueFull is ordinary
// back-pressure: the post methods return it unwrapped, so a full queue does not allocate.
var (
	// ErrClosed means that the object, or one it depends on, was closed.
	ErrClosed = errors.New("closed")
	// ErrQueueFull means that a work queue is full: poll completions, then post again.
	ErrQueueFull = errors.New("work queue full")
	// ErrBusy means that other objects still depend on the object being closed.
	ErrBusy = errors.New("in use by other objects")
	// ErrInvalid means that an argument is invalid.
	ErrInvalid = errors.New("invalid argument")
	// ErrState means that the QP's state does not allow the call.
	ErrState = errors.New("wrong QP state")
	// ErrLimit means that a device or object limit is reached.
	ErrLimit = errors.New("limit reached")
	// ErrNotSupported means that this provider, device or platform lacks the feature.
	ErrNotSupported = errors.New("not supported")
	// ErrNotFound means that the device, port, GID or address does not exist.
	ErrNotFound = errors.New("not found")
	// ErrCQOverrun means that a completion queue overran. Completions were lost, and its QPs are in the
	// error state.
	ErrCQOverrun = errors.New("completion queue overrun")
	// ErrDeviceFatal means that the device has failed and must be reopened.
	ErrDeviceFatal = errors.New("device failed")
)

// OpError describes a failed operation: its name, the object and the cause.
type OpError struct {
	// Op is the operation, such as "modify QP" or "register memory".
	Op string
	// Device is the device's name, or empty.
	Device string
	// QPN is the QP's number, or 0.
	QPN uint32
	// Err is the cause, visible to errors.Is and errors.As.
	Err error
}

// Error implements error.
func (e *OpError) Error() string {
	var b strings.Builder
	b.WriteString(e.Op)
	if e.Device != "" {
		b.WriteString(" on ")
		b.WriteString(e.Device)
	}
	if e.QPN != 0 {
		fmt.Fprintf(&b, " (QP %#06x)", e.QPN)
	}
	if e.Err != nil {
		b.WriteString(": ")
		b.WriteString(e.Err.Error())
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *OpError) Unwrap() error { return e.Err }

// NewOpError returns an *OpError, or nil if err is nil.
func NewOpError(op, device string, qpn uint32, err error) error {
	if err == nil {
		return nil
	}
	return &OpError{Op: op, Device: device, QPN: qpn, Err: err}
}

// Invalidf returns an error that wraps [ErrInvalid] and describes the argument.
func Invalidf(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
}
