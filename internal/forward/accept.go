package forward

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// MaxConns is the maximum number of concurrent connections of a Client. Further ones wait,
	// without a limit, until the Client accepts them.
	MaxConns = 1024
	// MaxServed is the maximum number of concurrent connections of a Server, shared by all its
	// Clients. A connection without a free share is reset after dialTime.
	MaxServed = 2 * MaxConns
	// patience bounds how long an accept loop waits for a connection to reach its target before it
	// accepts the next one, so that connections reach the target in the order programs opened them.
	patience = 100 * time.Millisecond
	// firstPause is the delay after an accept error; it doubles up to longestPause.
	firstPause, longestPause = 5 * time.Millisecond, time.Second
)

// Logf prints a line for the user. It must be safe for concurrent use.
type Logf func(format string, args ...any)

// acceptLimiter accepts a bounded number of concurrent connections.
type acceptLimiter struct {
	say    Logf
	places chan struct{} // holds a token for each connection
	full   logOnce
	// patience bounds the wait until handle calls next.
	patience time.Duration
}

func newAcceptLimiter(say Logf, places int) acceptLimiter {
	return acceptLimiter{say: (&limiter{to: say, period: period}).say, places: make(chan struct{}, places), patience: patience}
}

// handle serves a connection. It may call next to admit the next one.
type handle func(ctx context.Context, c net.Conn, next func())

// serve calls handle for every connection of l, until ctx is done or l is closed. When it returns,
// l is closed, the handlers' context is canceled and all of them have returned. It returns an error
// if l was closed by another party.
func (d *acceptLimiter) serve(ctx context.Context, l net.Listener, handle handle) error {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	closed := sync.OnceFunc(func() { _ = l.Close() }) // waits for a call in another goroutine
	defer closed()
	defer context.AfterFunc(ctx, closed)()
	for {
		if !d.enter(ctx) {
			return nil
		}
		c, err := d.accept(ctx, l)
		if err != nil || ctx.Err() != nil {
			if c != nil {
				reset(c)
			}
			<-d.places
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		turn := make(chan struct{})
		next := sync.OnceFunc(func() { close(turn) })
		all.Go(func() {
			defer func() { <-d.places }()
			defer next()
			handle(ctx, c, next)
		})
		select {
		case <-turn:
		case <-time.After(d.patience):
		case <-ctx.Done():
		}
	}
}

// enter waits for a free connection slot and reports whether it got one.
func (d *acceptLimiter) enter(ctx context.Context) bool {
	select {
	case d.places <- struct{}{}:
		d.full.gone()
		return true
	default:
	}
	if d.full.begins() {
		d.say("there are %d connections: more must wait", cap(d.places))
	}
	select {
	case d.places <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// accept waits for the next connection. System errors, such as too many open files, may be
// temporary: they are reported once and retried.
func (d *acceptLimiter) accept(ctx context.Context, l net.Listener) (net.Conn, error) {
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		c, err := l.Accept()
		var system syscall.Errno
		if err == nil {
			setLinger(c, 0)
		}
		if err == nil || ctx.Err() != nil || !errors.As(err, &system) {
			return c, err
		}
		if pause == firstPause {
			d.say("%v: trying again", err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// logOnce reports a condition once, until it is resolved.
type logOnce struct{ known atomic.Bool }

// begins reports whether the condition is new.
func (p *logOnce) begins() bool { return !p.known.Swap(true) }

// gone clears the condition and reports whether it was set.
func (p *logOnce) gone() bool { return p.known.Load() && p.known.Swap(false) }
