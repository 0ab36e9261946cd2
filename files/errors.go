package files

import (
	"fmt"
	"strings"

	"ibverbx/internal/rpc"
	"ibverbx/transfer"
)

// Errors. Returned errors wrap one of these or the error of a system call, and are usually an *Error.
var (
	// ErrPeerGone means that the peer was lost and did not return in time.
	ErrPeerGone = transfer.ErrPeerGone
	// ErrRestarted means that the peer was restarted and could not continue.
	ErrRestarted = transfer.ErrRestarted
	// ErrCanceled means that the transfer was canceled.
	ErrCanceled = transfer.ErrCanceled
	// ErrClosed means that this side has closed the Engine or the Node.
	ErrClosed = transfer.ErrClosed
	// ErrNotFound means that the peer does not have the file, or does not grant access to it.
	ErrNotFound = transfer.ErrNotFound
	// ErrDenied means that an Export is not granted for the requested access, or that a file cannot be used.
	ErrDenied = transfer.ErrDenied
	// ErrDigest means that a chunk or a file still differs from the peer's after a second attempt.
	ErrDigest = transfer.ErrDigest
	// ErrBusy means that another transfer uses the target, or that the peer is at a limit: try again later.
	ErrBusy = transfer.ErrBusy
	// ErrFailed means that the peer failed, for example because its disk is full.
	ErrFailed = transfer.ErrFailed
	// ErrMismatch means that the two sides have different protocol versions.
	ErrMismatch = transfer.ErrMismatch
	// ErrTooLong means that a name, a file or a directory exceeds its limit.
	ErrTooLong = transfer.ErrTooLong
	// ErrChanged means that a file was changed, truncated or replaced while it was transferred.
	ErrChanged = rpc.ErrChanged
)

// Error describes a failed call.
type Error struct {
	// Op is the failed operation: "get", "put", "list", "export", "connect".
	Op string
	// Peer is the peer, empty if none is concerned.
	Peer string
	// Name is the file's name at the peer, or the name of the Export. It may be empty.
	Name string
	// Err is the cause.
	Err error
}

// Error names everything that is known.
func (e *Error) Error() string {
	var s strings.Builder
	s.WriteString("files: " + e.Op)
	if e.Name != "" {
		fmt.Fprintf(&s, " %q", e.Name)
	}
	if e.Peer != "" {
		fmt.Fprintf(&s, " with peer %s", e.Peer)
	}
	return s.String() + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

func newError(op string, p *Peer, name string, err error) *Error {
	e := &Error{Op: op, Name: name, Err: err}
	if p != nil {
		e.Peer = p.String()
	}
	return e
}
