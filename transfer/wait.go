package transfer

import (
	"context"

	"ibverbx/internal/service"
)

// waiter is a goroutine that sleeps until a transfer ends.
type waiter struct {
	wake chan struct{}
	next *waiter
}

func (t *Transfer) isDone() bool { return t.state.Load()&stateDone != 0 }

// Err is nil until the transfer has ended, and then says why it failed.
func (t *Transfer) Err() error {
	if !t.isDone() {
		return nil
	}
	return t.err
}

// Done is closed when the transfer has ended. Wait is cheaper.
func (t *Transfer) Done() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.done == nil {
		t.done = make(chan struct{})
		if t.isDone() {
			close(t.done)
		}
	}
	return t.done
}

// Wait waits until the transfer has ended, and returns its error. If ctx ends before, the transfer goes on, and its memory must
// not be used: see Cancel.
func (t *Transfer) Wait(ctx context.Context) error {
	if service.Drive(t.peer.service, service.Rounds, t.isDone) {
		return t.err
	}
	w := t.peer.engine.waiters.Get().(*waiter)
	t.mu.Lock()
	if t.isDone() {
		t.mu.Unlock()
		t.peer.engine.waiters.Put(w)
		return t.err
	}
	w.next, t.waiters = t.waiters, w
	t.mu.Unlock()
	var err error
	select {
	case <-w.wake:
		err = t.err
	case <-ctx.Done():
		if err = newError("wait for "+t.name, t.peer, "", context.Cause(ctx)); !t.unwait(w) {
			<-w.wake
			err = t.err
		}
	}
	w.next = nil
	t.peer.engine.waiters.Put(w)
	return err
}

// unwait takes a waiter back. It reports whether the transfer has not ended.
func (t *Transfer) unwait(w *waiter) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for at := &t.waiters; *at != nil; at = &(*at).next {
		if *at == w {
			*at = w.next
			return true
		}
	}
	return false
}
