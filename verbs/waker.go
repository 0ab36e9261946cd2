package verbs

import (
	"context"
	"math"
	"sync"
	"time"
)

// Waker lets one goroutine sleep until an event. It holds at most one token: Wake adds it, Wait consumes
// it. A Wake before a Wait is not lost, and several count as one, so the woken goroutine must check
// everything that shares the Waker.
//
// A CQ uses the Waker of its CQConfig, events use Context.NotifyEvents, and a timer uses
// time.AfterFunc(d, w.Wake). The zero value is a Waker without a token. Wake is safe for concurrent use.
// Only one goroutine at a time may call Wait or Sleep.
type Waker struct {
	once  sync.Once
	token chan struct{}
	timer *time.Timer // used by Sleep; nil before the first timed one
	call  func()      // called by Wake instead of adding the token; may be nil
}

// NewWaker returns a Waker without a token.
func NewWaker() *Waker { return &Waker{} }

// NewWakerFunc returns a Waker whose Wake calls wake instead of adding a token, for event loops that do
// not use Wait. NICs call wake with locks held, so wake must not block and must not use a NIC.
func NewWakerFunc(wake func()) *Waker { return &Waker{call: wake} }

func (w *Waker) tokens() chan struct{} {
	w.once.Do(func() { w.token = make(chan struct{}, 1) })
	return w.token
}

// Wake adds the token. It never blocks.
func (w *Waker) Wake() {
	if w.call != nil {
		w.call()
		return
	}
	select {
	case w.tokens() <- struct{}{}:
	default:
	}
}

// Wait consumes the token, and sleeps until one is available. It returns ctx.Err() if ctx is done first.
// If ctx is already done, Wait consumes an available token but never sleeps.
func (w *Waker) Wait(ctx context.Context) error {
	if ctx == nil {
		return Invalidf("wait: the Context is nil")
	}
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

// Sleep is Wait for at most limit; math.MaxInt64 means unlimited. It returns nil after a Wake and
// after limit, and ctx.Err() if ctx is done first.
func (w *Waker) Sleep(ctx context.Context, limit time.Duration) error {
	if limit == math.MaxInt64 || ctx == nil {
		return w.Wait(ctx)
	}
	token := w.tokens()
	select {
	case <-token:
		return nil
	default:
	}
	if w.timer == nil {
		w.timer = time.NewTimer(limit)
	} else {
		w.timer.Reset(limit)
	}
	defer w.timer.Stop()
	select {
	case <-token:
		return nil
	case <-w.timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
