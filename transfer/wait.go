package transfer

import (
	"context"

	"ibverbx/internal/service"
)

// waiter is a goroutine waiting for a transfer.
type waiter struct {
	wake chan struct{}
	next *waiter
}

func (t *Transfer) isDone() bool { return t.state.Load()&stateDone != 0 }

// Err returns the transfer's error once it has completed. It is nil while the transfer is running and after success. See Error for the
// details it carries.
func (t *Transfer) Err() error {
	if !t.isDone() {
		return nil
	}
	return t.err
}

// Done returns a channel that is closed when the transfer completes. Wait is cheaper.
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

// Wait blocks until the transfer completes and returns its error. If ctx is done first, Wait returns the cause of ctx and the transfer
// continues: its memory must not be reused before completion, see Cancel.
func (t *Transfer) Wait(ctx context.Context) error {
	switch {
	case t.peer == nil && t.isDone():
		return t.err
	case t.peer == nil:
		return newError("wait", nil, "", ErrClosed)
	case ctx == nil:
		return newError("wait for "+t.name, t.peer, "", checkContext(ctx))
	}
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

// unwait removes a waiter. It returns false if the transfer has completed.
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
