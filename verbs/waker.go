package verbs

import (
	"context"
	"sync"
)

// Waker lets one goroutine sleep until something happens. It holds one token: Wake
// puts it there, Wait takes it. Wakes before a Wait are not lost, and several of
// them count as one: whoever wakes up looks at everything that shares the Waker.
//
// CQs take one in their configuration, events by Context.NotifyEvents, and a timer by
// time.AfterFunc(d, w.Wake). The zero value is a Waker without a token. Wake may be called by any goroutine at any time and never
// blocks; Wait is for one goroutine at a time.
type Waker struct {
	once  sync.Once
	token chan struct{}
}

// NewWaker returns a Waker without a token.
func NewWaker() *Waker { return &Waker{} }

func (w *Waker) tokens() chan struct{} {
	w.once.Do(func() { w.token = make(chan struct{}, 1) })
	return w.token
}

// Wake puts the token. It never blocks.
func (w *Waker) Wake() {
	select {
	case w.tokens() <- struct{}{}:
	default:
	}
}

// Wait takes the token, sleeping until there is one. It returns ctx.Err() if ctx ends
// first; with a context that has ended it only looks whether there is a token.
func (w *Waker) Wait(ctx context.Context) error {
	token := w.tokens()
	select {
	case <-token:
		return nil
	default:
	}
	select {
	case <-token:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
