package verbs

import (
	"context"
	"sync"
)

// Waker lets one goroutine sleep until something happens. It holds at most one token:
// Wake adds it, Wait takes it. A Wake before a Wait is not lost, and several count as
// one, so the woken goroutine must check everything that shares the Waker.
//
// A CQ takes its Waker from CQConfig, events use Context.NotifyEvents, and a timer
// uses time.AfterFunc(d, w.Wake). The zero value is a Waker without a token. Any
// goroutine may call Wake at any time. Only one goroutine at a time may Wait.
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

// Wake adds the token. It never blocks.
func (w *Waker) Wake() {
	select {
	case w.tokens() <- struct{}{}:
	default:
	}
}

// Wait takes the token, and sleeps until there is one. It returns ctx.Err() if ctx ends
// first. If ctx has already ended, Wait takes a token that is there but never sleeps.
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
