package service

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"ibverbx/internal/broadcast"
)

// Errors of package node that services report themselves.
var (
	// ErrRestarted is node.ErrRestarted.
	ErrRestarted = errors.New("the peer was restarted")
	// ErrClosed is node.ErrClosed.
	ErrClosed = errors.New("closed")
	// ErrDetached closes a session because this side has closed one of its services. It is not a failure.
	ErrDetached = errors.New("the service is detached")
)

// Link is a service's connection to one peer: the session, or the error that explains its absence.
// Mu may guard further state of the service.
type Link struct {
	// Peer is the peer. Name describes its part of the service in errors. Done is closed when the
	// local part closes. All three are constant.
	Peer Peer
	Name string
	Done <-chan struct{}

	// Mu guards the fields below.
	Mu sync.Mutex
	// Session is the current session, nil unless both sides run the service. Live is canceled when
	// the session closes.
	Session Session
	Live    context.Context
	lost    context.CancelFunc
	// Err is the reason why no session is expected.
	Err error
	// Changed is raised when one of the fields above changes. Services also raise it when other
	// state that Wait depends on changes.
	Changed broadcast.Signal
}

// Expect records that a session is being established. Mu must be held.
func (l *Link) Expect() {
	l.Err = nil
	l.Changed.Raise()
}

// Begin starts a session. Live is derived from ctx. Mu must be held.
func (l *Link) Begin(ctx context.Context, s Session) {
	l.Session, l.Err = s, nil
	l.Live, l.lost = context.WithCancel(ctx)
	l.Changed.Raise()
}

// Drop removes a session and reports whether it was the current one. Mu must be held.
func (l *Link) Drop(s Session) bool {
	if l.Session != s {
		return false
	}
	l.Session = nil
	l.lost()
	l.Changed.Raise()
	return true
}

// Wait waits until ready reports true. It returns the error of ready, ErrClosed, Err, or the cause
// of ctx. ready is called with Mu held, first immediately and then whenever Changed is raised or
// ended is closed. Unless it reports true immediately, Wait calls Peer.Redial.
func (l *Link) Wait(ctx context.Context, ended <-chan struct{}, ready func() (bool, error)) error {
	for redialed := false; ; redialed = true {
		l.Mu.Lock()
		ok, err := ready()
		changed := l.Changed.Next()
		switch {
		case err != nil:
		case l.Closed():
			err = ErrClosed
		default:
			err = l.Err
		}
		l.Mu.Unlock()
		if !ok && !redialed {
			l.Peer.Redial()
		}
		if ok || err != nil {
			return err
		}
		select {
		case <-changed:
		case <-ended:
		case <-l.Done:
		case <-ctx.Done():
			return fmt.Errorf("the peer is not connected or has no %s: %w", l.Name, context.Cause(ctx))
		}
	}
}

// Closed reports whether Done is closed.
func (l *Link) Closed() bool { return broadcast.Closed(l.Done) }
