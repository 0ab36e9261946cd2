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
	// MaxConns is how many connections a Client has at a time. Those of programs wait until the Client accepts them, without a limit.
	MaxConns = 1024
	// MaxServed is how many connections a Server has at a time with all its Clients, in shares. Those that wait for a share are reset after dialTime.
	MaxServed = 2 * MaxConns
	// patience is how long an accept loop waits until a connection has reached its target before it takes the next one, so that
	// connections reach the target in the order in which programs have made them.
	patience = 100 * time.Millisecond
	// firstPause is how long an accept loop waits after an error, and longestPause after several in a row.
	firstPause, longestPause = 5 * time.Millisecond, time.Second
)

// Say prints a line for the user. It may be called from any goroutine.
type Say func(format string, args ...any)

// door accepts connections, a bounded number at a time.
type door struct {
	say    Say
	places chan struct{} // holds a token for each connection
	full   problem
	// patience is how long the next connection waits until handle has called next.
	patience time.Duration
}

func newDoor(say Say, places int) door {
	return door{say: (&limiter{to: say, period: period}).say, places: make(chan struct{}, places), patience: patience}
}

// handle serves a connection. It may call next to let the next one in.
type handle func(ctx context.Context, c net.Conn, next func())

// serve calls handle for every connection of l, until ctx ends or l is closed. When it returns, l is closed and all calls of handle
// have returned, whose context ends before. It returns an error if l was closed by somebody else.
func (d *door) serve(ctx context.Context, l net.Listener, handle handle) error {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
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
			_ = l.Close()
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

// enter waits until there is room for another connection. It reports whether there is.
func (d *door) enter(ctx context.Context) bool {
	select {
	case d.places <- struct{}{}:
		d.full.gone()
		return true
	default:
	}
	if d.full.is() {
		d.say("there are %d connections: more must wait", cap(d.places))
	}
	select {
	case d.places <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// accept waits for the next connection. An error of the system, such as too many open files, may pass: it is told once and waited for.
func (d *door) accept(ctx context.Context, l net.Listener) (net.Conn, error) {
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		c, err := l.Accept()
		var system syscall.Errno
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

// problem is told once, until it has gone.
type problem struct{ known atomic.Bool }

// is reports whether the problem is new.
func (p *problem) is() bool { return !p.known.Swap(true) }

// gone reports whether there was a problem, which has gone.
func (p *problem) gone() bool { return p.known.Load() && p.known.Swap(false) }
