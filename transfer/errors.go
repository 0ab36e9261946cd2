package transfer

import (
	"errors"
	"fmt"
	"strings"

	"ibverbx/internal/rpc"
	"ibverbx/node"
)

// Errors. Returned errors wrap one of these, or the error of a request, and are usually an *Error.
var (
	// ErrPeerGone means that the peer was lost and did not return in time, or has closed its Engine.
	ErrPeerGone = node.ErrPeerGone
	// ErrRestarted means that the peer's process is another one than before. Open its segments again.
	ErrRestarted = node.ErrRestarted
	// ErrCanceled means that the transfer was canceled. The memory that it wrote to holds any part of the bytes.
	ErrCanceled = node.ErrCanceled
	// ErrClosed means that this side has closed the Engine, the segment or the Node.
	ErrClosed = node.ErrClosed
	// ErrNotFound means that the peer does not have the segment, or does not grant access to it.
	ErrNotFound = rpc.ErrNotFound
	// ErrDenied means that a segment is not granted for the requested access.
	ErrDenied = rpc.ErrDenied
	// ErrRange means that bytes lie outside a segment.
	ErrRange = rpc.ErrRange
	// ErrDigest means that the bytes on the two sides differ after a transfer with Verify.
	ErrDigest = rpc.ErrDigest
	// ErrRevoked means that the peer has closed the segment.
	ErrRevoked = rpc.ErrRevoked
	// ErrBusy means that there is no room for another transfer, or that the peer cannot lend a segment now: try again later.
	ErrBusy = rpc.ErrBusy
	// ErrFailed means that the peer failed locally.
	ErrFailed = rpc.ErrFailed
	// ErrMismatch means that the two sides speak different versions of the protocol.
	ErrMismatch = rpc.ErrMismatch
	// ErrTooLong means that a name or a notification has too many bytes.
	ErrTooLong = errors.New("too long")
	// errProtocol means that a peer sent what no honest peer sends. It ends the session.
	errProtocol = rpc.ErrProtocol
	errNoEngine = fmt.Errorf("%w: it has no transfer engine now", ErrPeerGone)
)

// Error says what failed and where. Index and the fields after it describe the first block that did not succeed.
type Error struct {
	// Op is what was done: "put", "get", "batch", "notify", "open", "alloc".
	Op string
	// Peer is the peer, empty if none is concerned.
	Peer string
	// Name is the segment, the peer's if one of the peer is concerned, and may be empty.
	Name string
	// Index is the block of the batch, counted from 0, and -1 if the error is not about a block.
	Index int
	// Offset and Length are the block's bytes in the segment, from the first byte on that is not known to have arrived.
	Offset, Length int64
	// Rail is the NIC that reported the error, -1 if that is not known.
	Rail int
	// Err is the cause.
	Err error
}

// Error names everything that is known.
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
	return s.String() + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// newError returns an Error that is not about a block.
func newError(op string, p *Peer, name string, err error) *Error {
	e := &Error{Op: op, Name: name, Index: -1, Rail: -1, Err: err}
	if p != nil {
		e.Peer = p.String()
	}
	return e
}
