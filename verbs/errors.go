package verbs

import (
	"errors"
	"fmt"
	"strings"
)

// Sentinel errors. Providers wrap them in an [OpError]; test with errors.Is.
// ErrQueueFull is ordinary back-pressure and is returned bare by the post methods,
// so that a full queue costs no allocation.
var (
	// ErrClosed says that the object, or one that it stands on, was closed.
	ErrClosed = errors.New("closed")
	// ErrQueueFull says that a work queue has no room: poll completions, then post again.
	ErrQueueFull = errors.New("work queue full")
	// ErrBusy says that other objects still stand on the one to be closed.
	ErrBusy = errors.New("in use by other objects")
	// ErrInvalid says that an argument is not legal.
	ErrInvalid = errors.New("invalid argument")
	// ErrState says that the QP is in a state that does not allow the call.
	ErrState = errors.New("wrong QP state")
	// ErrLimit says that a limit of the device or of the object is reached.
	ErrLimit = errors.New("limit reached")
	// ErrNotSupported says that this provider, device or platform cannot do it.
	ErrNotSupported = errors.New("not supported")
	// ErrNotFound says that there is no such device, port, GID or address.
	ErrNotFound = errors.New("not found")
	// ErrCQOverrun says that a completion queue overran: completions were lost and
	// the QPs on it are in the error state.
	ErrCQOverrun = errors.New("completion queue overrun")
	// ErrDeviceFatal says that the device has failed and must be opened again.
	ErrDeviceFatal = errors.New("device failed")
)

// OpError says which operation failed, where, and why.
type OpError struct {
	// Op is the verb in words, such as "modify QP" or "register memory".
	Op string
	// Device is the name of the device, empty if none is involved.
	Device string
	// QPN is the number of the QP, 0 if none is involved.
	QPN uint32
	// Err is the cause; errors.Is and errors.As see it.
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

// Invalidf returns an error that wraps [ErrInvalid] and says what is wrong.
func Invalidf(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
}
