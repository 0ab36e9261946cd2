package files

import (
	"errors"
	"fmt"
	"strings"

	"ibverbx/internal/rpc"
	"ibverbx/transfer"
)

// Errors returned by this package, for use with errors.Is. Most are wrapped in an *Error. Local file errors wrap the error of the system
// call.
var (
	// ErrPeerGone means that the peer did not reconnect within node.Config.LostTimeout, or did not reopen its Engine within a minute.
	ErrPeerGone = transfer.ErrPeerGone
	// ErrRestarted means that the peer was restarted and the transfer could not resume.
	ErrRestarted = transfer.ErrRestarted
	// ErrCanceled means that the transfer was canceled.
	ErrCanceled = transfer.ErrCanceled
	// ErrClosed means that the local Engine or Node is closed.
	ErrClosed = transfer.ErrClosed
	// ErrNotFound means that the peer does not have the file, or denies access to it.
	ErrNotFound = transfer.ErrNotFound
	// ErrDenied means that the Export is granted without the requested access, or that the file has an unsupported name or type.
	ErrDenied = transfer.ErrDenied
	// ErrDigest means that a chunk or file still differs from the peer's after a retry.
	ErrDigest = transfer.ErrDigest
	// ErrBusy means that another transfer uses the destination, or that the peer has reached a limit. Try again later.
	ErrBusy = transfer.ErrBusy
	// ErrFailed means that the peer failed to execute the request, for example because its disk is full.
	ErrFailed = transfer.ErrFailed
	// ErrMismatch means that the peer runs an incompatible protocol version.
	ErrMismatch = transfer.ErrMismatch
	// ErrTooLong means that a name exceeds 4096 bytes, a file exceeds MaxFileSize, or a directory exceeds 1<<20 entries, 256 MiB of names
	// or a depth of 128. A file or directory that the peer finds too long fails with ErrFailed, and the text gives the limit.
	ErrTooLong = transfer.ErrTooLong
	// ErrIncomplete means that entries of a directory were not transferred. The error names the first ones; the rest is transferred.
	ErrIncomplete = errors.New("the directory is incomplete")
	// ErrChanged means that a file was modified, truncated or replaced during its transfer.
	ErrChanged = rpc.ErrChanged
)

// Error describes a failed call or transfer.
type Error struct {
	// Op is the operation, such as "get", "put", "list", "serve" or "connect".
	Op string
	// Peer is the peer's name and address; empty for local operations.
	Peer string
	// Name is the file's name at the peer, or the Export's name. It may be empty.
	Name string
	// Err is the cause.
	Err error
}

// Error formats all known fields and the cause in one line.
func (e *Error) Error() string {
	var s strings.Builder
	s.WriteString("files: " + e.Op)
	if e.Name != "" {
		fmt.Fprintf(&s, " %q", e.Name)
	}
	if e.Peer != "" {
		fmt.Fprintf(&s, " with peer %s", e.Peer)
	}
	return fmt.Sprintf("%s: %v", s.String(), e.Err)
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
