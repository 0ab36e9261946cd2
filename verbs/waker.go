package verbs

import "context"

// Waker lets one goroutine sleep until something happens. It holds one token: Wake
// puts it there, Wait takes it. Wakes before a Wait are not lost, and several of
// them count as one: whoever wakes up looks at everything that shares the Waker.
//
// CQs take one in their configuration, events by Context.NotifyEvents, and a timer by
// time.AfterFunc(d, w.Wake). Make one with NewWaker. Wake may be called by any goroutine at any time and never
// blocks; Wait is for one goroutine at a time.
type Waker struct {
	token chan struct{}
}

// NewWaker returns a Waker without a token.
func NewWaker() *Waker { return &Waker{token: make(chan struct{}, 1)} }

// Wake puts the token. It never blocks.
func (w *Waker) Wake() {
	select {
	case w.token <- struct{}{}:
	default:
	}
}

// Wait takes the token, sleeping until there is one. It returns ctx.Err() if ctx
// ends first.
func (w *Waker) Wait(ctx context.Context) error {
	select {
	case <-w.token:
		return nil
	default:
	}
	select {
	case <-w.token:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
