package transfer

import (
	"context"
	"fmt"
	"time"

	"ibverbx/internal/service"
)

// cancelTimeout is the time without progress after Cancel that closes the session.
const cancelTimeout = time.Second

// Cancel stops posting requests and returns immediately. The transfer completes when the requests already posted have completed, usually
// within milliseconds. It fails with ErrCanceled unless everything had been posted; the destination may then contain any part of the data.
// If the peer does not respond for 1 s, its session is closed, and other transfers resume in the next session.
func (t *Transfer) Cancel() { t.cancel(ErrCanceled) }

func (t *Transfer) cancel(cause error) {
	t.mu.Lock()
	first := t.cause == nil && !t.isDone()
	if first = first && t.peer != nil; first {
		t.cause = cause
	}
	stop := t.stop
	t.mu.Unlock()
	if !first {
		return
	}
	t.state.Or(stateCanceled)
	t.peer.service.Cancel(&t.op)
	if stop != nil {
		stop(cause)
	}
	if t.detachNotification() {
		t.finish(cause)
		return
	}
	t.watchCanceled(t.op.Progress())
}

// detachNotification detaches the notification from a transfer whose blocks have completed. It reports whether it did. A posted notification may
// still arrive.
func (t *Transfer) detachNotification() bool {
	p := t.peer
	p.link.Mu.Lock()
	n := t.notification
	if n == nil || !n.ready {
		p.link.Mu.Unlock()
		return false
	}
	var list *notification
	if n.inFlight {
		n.detach()
	} else {
		list = n.drop()
	}
	p.link.Mu.Unlock()
	p.submitNotifications(list)
	return true
}

// watchCanceled closes the session if a canceled transfer's blocks stop making progress. That completes the transfer, even if all of it was posted.
func (t *Transfer) watchCanceled(progress uint64) {
	time.AfterFunc(cancelTimeout, func() {
		if t.isDone() {
			return
		}
		now := t.op.Progress()
		if s := t.peer.service.Session(); s != nil && now == progress && t.op.Pending() {
			s.End(fmt.Errorf("transfer: no progress for %v after a transfer was canceled", cancelTimeout))
		}
		t.watchCanceled(now)
	})
}

// cancelUsers cancels the transfers using the memory selected by uses.
func (p *Peer) cancelUsers(uses func(endpoints) bool, cause error) {
	p.cancelRunning(func(t *Transfer) bool {
		for _, part := range t.batch.endpoints {
			if uses(part) {
				return true
			}
		}
		return false
	}, cause)
}

// cancelRunning cancels the transfers selected by which, which is called with mu held.
func (p *Peer) cancelRunning(which func(*Transfer) bool, cause error) {
	p.link.Mu.Lock()
	var list []*Transfer
	for t := p.running.first; t != nil; t = t.next {
		if which(t) {
			list = append(list, t)
		}
	}
	p.link.Mu.Unlock()
	for _, t := range list {
		t.cancel(cause)
	}
}

// drain waits for all local transfers to complete and, if ended is true, for the session to close.
func (p *Peer) drain(ctx context.Context, ended bool) error {
	err := service.Await(ctx, p.service, func() bool {
		p.link.Mu.Lock()
		defer p.link.Mu.Unlock()
		return p.count == 0 && (!ended || p.ops == 0 && p.link.Session == nil)
	})
	if err != nil {
		return newError("close", p, "", fmt.Errorf("transfers are under way: %w", err))
	}
	return nil
}

// transferList is a list of transfers.
type transferList struct{ first *Transfer }

func (l *transferList) add(t *Transfer) {
	t.next = l.first
	if l.first != nil {
		l.first.prev = t
	}
	l.first = t
}

func (l *transferList) remove(t *Transfer) {
	if t.prev != nil {
		t.prev.next = t.next
	} else {
		l.first = t.next
	}
	if t.next != nil {
		t.next.prev = t.prev
	}
	t.next, t.prev = nil, nil
}
