package node

import (
	"errors"

	"ibverbx/internal/service"
)

// Errors. Returned errors wrap one of these and add details.
var (
	// ErrPeerGone means that a peer was lost and did not return within Config.LostTimeout.
	ErrPeerGone = errors.New("the peer is gone")
	// ErrRestarted means that the peer's process is another one than before, so what it had lent is gone.
	ErrRestarted = service.ErrRestarted
	// ErrLost means that the session with the peer has ended. There may be another one soon.
	ErrLost = errors.New("the session is lost")
	// ErrCanceled means that an operation was canceled.
	ErrCanceled = errors.New("canceled")
	// ErrClosed means that this side has closed the Node or the Peer.
	ErrClosed = service.ErrClosed
	// ErrRefused means that this side or the peer does not want the session.
	ErrRefused = errors.New("refused")
	// ErrVersion means that the two sides speak different versions of a protocol. The text names both.
	ErrVersion = service.ErrVersion
	// ErrOther means that another peer answers at the address of a lost one. It may be the same program with another certificate or
	// name. It becomes a Peer when the lost one is closed.
	ErrOther = errors.New("another peer than before")
)

// RequestError is the error of an operation of which a NIC or the peer has refused a request.
type RequestError struct {
	// Rail is the NIC that reported the error, counted as in Config.Open, and -1 if that is not known.
	Rail int
	// Err wraps a *verbs.WCError.
	Err error
}

// Error returns the text of the cause, which names the rail.
func (e *RequestError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *RequestError) Unwrap() error { return e.Err }
