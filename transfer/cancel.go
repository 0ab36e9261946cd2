package transfer

import (
	"context"
	"fmt"
	"time"

	"ibverbx/internal/seat"
)

// cancelTimeout is how long a transfer that was canceled may make no progress before the session is ended.
const cancelTimeout = time.Second

// Cancel makes the transfer post nothing more. It ends when what is posted has ended, usually within milliseconds, and in ErrCanceled
// unless everything was posted. The memory that it writes to then holds any part of the bytes. A peer that does not answer for 1 s
// loses its session. Other transfers go on in the next one.
func (t *Transfer) Cancel() { t.cancel(ErrCanceled) }

func (t *Transfer) cancel(cause error) {
	t.mu.Lock()
	first := t.cause == nil && !t.isDone()
	if first {
		t.cause = cause
	}
	stop, op := t.stop, t.retry
	t.mu.Unlock()
	if !first {
		return
	}
	if op == nil {
		op = &t.op
	}
	if t.state.Or(stateCanceled)&stateSubmitted != 0 {
		t.peer.seat.Cancel(op)
	}
	if stop != nil {
		stop(cause)
	}
	p := t.peer
	p.mu.Lock()
	n := t.note
	waiting := n != nil && n.transfer == t && n.ready && !n.flying
	var list *note
	if waiting {
		list = n.drop()
		t.note = nil
	}
	p.mu.Unlock()
	p.submitNotes(list)
	if waiting {
		t.finish(cause)
		return
	}
	t.watch(op, op.Progress())
}

// watch ends the session if a transfer that was canceled makes no progress beyond what it has for a while. That ends the transfer, even if all
// of it was posted.
func (t *Transfer) watch(op *seat.Op, progress uint64) {
	time.AfterFunc(cancelTimeout, func() {
		if t.isDone() {
			return
		}
		now := op.Progress()
		if s := t.peer.seat.Session(); s != nil && now == progress {
			s.End(fmt.Errorf("transfer: the peer has not answered for %v since a transfer was canceled", cancelTimeout))
		}
		t.watch(op, now)
	})
}

// cancelUsers cancels the transfers that use certain memory.
func (p *Peer) cancelUsers(uses func(part) bool, cause error) {
	p.cancelRunning(func(t *Transfer) bool {
		for _, part := range t.load.parts {
			if uses(part) {
				return true
			}
		}
		return false
	}, cause)
}

// cancelRunning cancels the transfers for which which is true. It is called with mu.
func (p *Peer) cancelRunning(which func(*Transfer) bool, cause error) {
	p.mu.Lock()
	var list []*Transfer
	for t := p.running.first; t != nil; t = t.next {
		if which(t) {
			list = append(list, t)
		}
	}
	p.mu.Unlock()
	for _, t := range list {
		t.cancel(cause)
	}
}

// drain waits until no operation of this side is under way.
func (p *Peer) drain(ctx context.Context) error {
	for {
		p.mu.Lock()
		busy := p.count
		if p.proc != nil {
			busy += p.proc.busy
		}
		p.mu.Unlock()
		if busy == 0 {
			return nil
		}
		p.seat.Help()
		select {
		case <-ctx.Done():
			return newError("close", p, "", fmt.Errorf("transfers are under way: %w", context.Cause(ctx)))
		case <-time.After(time.Millisecond):
		}
	}
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
