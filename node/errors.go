package node

import (
	"errors"
	"fmt"

	"ibverbx/internal/service"
)

// Errors returned by this package and by packages built on it, for use with errors.Is.
var (
	// ErrPeerGone means that a lost peer did not reconnect within Config.LostTimeout.
	ErrPeerGone = errors.New("the peer is gone")
	// ErrRestarted means that a new process has replaced the peer's process, which invalidates its grants.
	ErrRestarted = service.ErrRestarted
	// ErrLost means that the session with the peer was lost. The Node may re-establish it.
	ErrLost = errors.New("the session is lost")
	// ErrCanceled means that an operation was canceled.
	ErrCanceled = errors.New("canceled")
	// ErrClosed means that the local Node or Peer is closed.
	ErrClosed = service.ErrClosed
	// ErrRefused means that one side refused the session. The text gives the reason.
	ErrRefused = errors.New("refused")
	// ErrVersion means that the protocol versions are incompatible. The text gives both.
	ErrVersion = service.ErrVersion
	// ErrOther means that another peer answers at a lost peer's address, for example the same program with a new certificate or name. Close
	// the lost Peer to admit it.
	ErrOther = errors.New("another peer than before")
)

// RequestError is the error of an operation with a request that a NIC or the peer rejected.
type RequestError struct {
	// Rail is the index of the NIC that reported the error, in the order of Config.Open; -1 if unknown.
	Rail int
	// Err wraps a *verbs.WCError.
	Err error
}

// Error returns the text of Err.
func (e *RequestError) Error() string { return fmt.Sprint(e.Err) }

// Unwrap returns the cause.
func (e *RequestError) Unwrap() error { return e.Err }
