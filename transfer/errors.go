package transfer

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"ibverbx/internal/rpc"
	"ibverbx/node"
	"ibverbx/verbs"
)

// Errors returned by this package, for use with errors.Is. Most are wrapped in an *Error. A request that failed at a NIC wraps a
// *node.RequestError instead.
var (
	// ErrPeerGone means that the peer did not reconnect within node.Config.LostTimeout, or has closed its Engine.
	ErrPeerGone = node.ErrPeerGone
	// ErrRestarted means that a new process has replaced the peer's process. Open its segments again.
	ErrRestarted = node.ErrRestarted
	// ErrCanceled means that the transfer was canceled. Its destination may contain any part of the data.
	ErrCanceled = node.ErrCanceled
	// ErrClosed means that the local Engine, segment or Node is closed.
	ErrClosed = node.ErrClosed
	// ErrNotFound means that the peer does not have the segment, or denies access to it.
	ErrNotFound = rpc.ErrNotFound
	// ErrDenied means that the segment is granted or opened without the requested access.
	ErrDenied = rpc.ErrDenied
	// ErrRange means that a block or a size is out of range for its segment.
	ErrRange = rpc.ErrRange
	// ErrDigest means that local and remote data differ after a transfer with Batch.Verify.
	ErrDigest = rpc.ErrDigest
	// ErrRevoked means that the peer has closed the segment.
	ErrRevoked = rpc.ErrRevoked
	// ErrBusy means that Config.MaxOutstanding is reached, that the peer's program does not read its notifications, or that the peer cannot
	// register the segment now. Try again later.
	ErrBusy = rpc.ErrBusy
	// ErrFailed means that the peer failed to execute the request.
	ErrFailed = rpc.ErrFailed
	// ErrMismatch means that the peer runs an incompatible protocol version.
	ErrMismatch = rpc.ErrMismatch
	// ErrTooLong means that a notification exceeds MaxNotification, or that a name exceeds MaxNameLen.
	ErrTooLong = errors.New("too long")
	// errProtocol reports a protocol violation by the peer. It closes the session.
	errProtocol = rpc.ErrProtocol
	errNoEngine = fmt.Errorf("%w: it has no transfer engine now", ErrPeerGone)
)

// Error describes a failed call or transfer. Index and the fields after it describe the first failed block.
type Error struct {
	// Op is the operation, such as "put", "get", "batch", "notify", "open" or "alloc".
	Op string
	// Peer is the peer's name and address; empty for local operations.
	Peer string
	// Name is the segment's name: the peer's segment for blocks and Open, the local one otherwise. It may be empty.
	Name string
	// Index is the block's index in its batch, starting at 0; -1 if the error does not concern a block.
	Index int
	// Offset and Length are the bytes of the block, as a range in the peer's segment, not known to have been moved.
	Offset, Length int64
	// Rail is the index of the NIC that reported the error; -1 if unknown.
	Rail int
	// Err is the cause.
	Err error
}

// Error formats all known fields and the cause in one line.
func (e *Error) Error() string {
	var s strings.Builder
	s.WriteString("transfer: " + e.Op)
	if e.Peer != "" {
		fmt.Fprintf(&s, " with peer %s", e.Peer)
	}
	if e.Name != "" {
		fmt.Fprintf(&s, ": segment %q", e.Name)
	}
	if e.Index >= 0 {
		fmt.Fprintf(&s, ": block %d (%d bytes at %d)", e.Index, e.Length, e.Offset)
	}
	if e.Rail >= 0 {
		fmt.Fprintf(&s, " on rail %d", e.Rail)
	}
	return fmt.Sprintf("%s: %v", s.String(), e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// checkContext returns verbs.ErrInvalid for a nil Context.
func checkContext(ctx context.Context) error {
	if ctx == nil {
		return verbs.Invalidf("the Context is nil")
	}
	return nil
}

// newError returns an Error that does not concern a block.
func newError(op string, p *Peer, name string, err error) *Error {
	e := &Error{Op: op, Name: name, Index: -1, Rail: -1, Err: err}
	if p != nil {
		e.Peer = p.String()
	}
	return e
}
