package transfer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"ibverbx/internal/broadcast"
	"ibverbx/internal/service"
	"ibverbx/node"
	"ibverbx/verbs"
)

// Transfer is a submitted Batch. It completes when the local NICs no longer access its memory. All methods are safe for concurrent use.
type Transfer struct {
	peer *Peer
	proc *process
	// batch and notification are nil once unused. Peer.link.Mu guards notification.
	batch        *batchState
	notification *notification
	// name is "put", "get", "batch" or "notify".
	name   string
	verify bool
	// retried is set when op was resubmitted after a digest mismatch.
	retried bool
	total   uint64
	op      service.Op
	// state holds the bits below, phase a Phase.
	state, phase atomic.Uint32
	// next and prev link the peer's outstanding transfers. Peer.link.Mu guards them.
	next, prev *Transfer

	mu sync.Mutex
	// err is valid once stateDone is set. cause is the reason for cancellation.
	err, cause error
	waiters    *waiter
	done       chan struct{}
	// stop aborts the digest comparison.
	stop context.CancelCauseFunc
}

// Bits of Transfer.state.
const (
	stateCanceled = 1 << iota
	stateDone
)

// admit waits for MaxOutstanding and adds the transfer to the outstanding ones.
func (p *Peer) admit(ctx context.Context, t *Transfer, notify bool) (notes *notification, err error) {
	p.link.Mu.Lock()
	if p.link.Session == nil {
		p.link.Mu.Unlock()
		p.service.Redial()
		p.link.Mu.Lock()
	}
	for p.count >= p.engine.cfg.MaxOutstanding && !p.engine.isClosed() {
		p.link.Mu.Unlock()
		select {
		case <-p.outstandingFreed:
		case <-p.engine.done:
		case <-ctx.Done():
			return nil, newError(t.name, p, "", fmt.Errorf("%w: %d transfers are under way: %w", ErrBusy, p.engine.cfg.MaxOutstanding, context.Cause(ctx)))
		}
		p.link.Mu.Lock()
	}
	defer p.link.Mu.Unlock()
	if p.count < p.engine.cfg.MaxOutstanding-1 {
		broadcast.Wake(p.outstandingFreed)
	}
	if err = p.usable(t); err == nil && notify {
		err = p.notifiable(t)
	}
	if err == nil {
		err = t.batch.enter(t)
	}
	if err != nil {
		broadcast.Wake(p.outstandingFreed) // wakes the next waiter
		return nil, err
	}
	t.proc = p.link.Proc
	p.count++
	p.running.add(t)
	if notify {
		p.counts.notified.Add(1)
		out := &t.proc.out
		t.notification = out.add(t, t.batch.body)
		t.notification.ready = len(t.batch.blocks) == 0
		notes = out.place(nil)
	}
	return notes, nil
}

// usable returns an error if the peer cannot accept a transfer. mu must be held.
func (p *Peer) usable(t *Transfer) error {
	err := p.link.Err
	switch {
	case err != nil:
	case p.engine.isClosed():
		err = ErrClosed
	case len(t.batch.endpoints) > 0: // enter compares their process with the present one
		return nil
	case p.link.Proc == nil:
		err = errNoEngine
	case p.link.Proc.Err != nil:
		err = p.link.Proc.Err
	default:
		return nil
	}
	return newError(t.name, p, "", err)
}

// notifiable returns an error if too many notifications wait for the peer's program to read. Outstanding transfers alone never reach the
// limit, but canceled ones leave void notifications. mu must be held.
func (p *Peer) notifiable(t *Transfer) error {
	limit := p.engine.cfg.MaxOutstanding + maxNotifications
	if proc := p.link.Proc; proc == nil || proc.out.unread.Len() < limit {
		return nil
	}
	return newError(t.name, p, "", fmt.Errorf("%w: %d notifications wait for the peer's program to read them (Engine.Recv)", ErrBusy, limit))
}

// enter keeps the segments on both sides open. Peer.link.Mu must be held.
func (l *batchState) enter(t *Transfer) error {
	for i, part := range l.endpoints {
		var err error
		switch r := part.remote; {
		case r.proc.Err != nil:
			err = r.proc.Err
		case r.proc != t.peer.link.Proc:
			err = ErrRestarted
		case r.revoked:
			err = ErrRevoked
		case i > 0 && l.endpoints[i-1] == part:
		case !part.segment.enter():
			err = fmt.Errorf("this side's segment %q: %w", part.segment.name, ErrClosed)
		default:
			r.uses++
		}
		if err != nil {
			l.leave(i)
			l.leaveSegments(i)
			return t.blockError(i, 0, err)
		}
	}
	return nil
}

// leave undoes enter on the peer's segments for the first n blocks. It returns the numbers of revoked grants that are now unused.
// Peer.link.Mu must be held.
func (l *batchState) leave(n int) (unused []uint32) {
	for i, part := range l.endpoints[:n] {
		if i > 0 && l.endpoints[i-1] == part {
			continue
		}
		r := part.remote
		if r.uses--; r.uses == 0 && r.revoked {
			delete(r.proc.remotes, r.number)
			unused = append(unused, r.number)
		}
	}
	return unused
}

// leaveSegments undoes enter on the local segments for the first n blocks.
func (l *batchState) leaveSegments(n int) {
	for i, part := range l.endpoints[:n] {
		if i == 0 || l.endpoints[i-1] != part {
			part.segment.leave()
		}
	}
}

// begin submits the blocks, if any, and the notifications that can be posted. A transfer with only a notification may already have
// completed.
func (t *Transfer) begin(notes *notification, blocks, notify bool) {
	switch {
	case blocks:
		t.op.Blocks, t.op.Replay, t.op.Incarnation, t.op.Sink = t.batch.blocks, true, t.proc.Incarnation, (*sink)(t)
		t.submit()
	case !notify:
		t.finish(nil)
	}
	t.peer.submitNotifications(notes)
}

// submit submits the blocks. An earlier Cancel could not see the operation, so it is repeated.
func (t *Transfer) submit() {
	t.peer.service.Submit(&t.op)
	if t.state.Load()&stateCanceled != 0 {
		t.peer.service.Cancel(&t.op)
	}
}

// sink is a Transfer as the service.Sink of its blocks.
type sink Transfer

// End implements service.Sink: all blocks are in place, or one has failed.
func (s *sink) End(op *service.Op, err error) {
	t := (*Transfer)(s)
	if err != nil {
		block, offset := op.Failed()
		t.finish(t.blockError(block, offset, t.reason(err)))
		return
	}
	if t.verify {
		t.phase.Store(uint32(Verifying))
		go t.verifyDigests()
		return
	}
	t.blocksDone()
}

// blocksDone posts the notification, if any, after the blocks have completed. It is not posted earlier, so that blocks are never rewritten after
// the peer's program has received it.
func (t *Transfer) blocksDone() {
	p := t.peer
	p.link.Mu.Lock()
	n := t.notification
	if n == nil {
		p.link.Mu.Unlock()
		t.finish(nil)
		return
	}
	t.phase.Store(uint32(Notifying))
	err := t.proc.Err
	if err == nil && t.state.Load()&stateCanceled != 0 { // otherwise cancel sees that the notification is ready
		err = ErrCanceled
	}
	var list *notification
	if err == nil {
		n.ready = true
		list = n.post(nil)
	} else {
		list = n.drop()
	}
	p.link.Mu.Unlock()
	p.submitNotifications(list)
	if err != nil {
		t.finish(err)
	}
}

// finish completes the transfer. It must be called once. A ready notification must be detached before.
func (t *Transfer) finish(err error) {
	p := t.peer
	if err != nil {
		err = t.describe(err)
	}
	p.link.Mu.Lock()
	p.running.remove(t)
	p.count--
	p.counts.finished(t, err)
	var list *notification
	if t.notification != nil {
		list = t.notification.drop()
	}
	unused := t.batch.leave(len(t.batch.endpoints))
	p.link.Mu.Unlock()
	broadcast.Wake(p.outstandingFreed)
	p.submitNotifications(list)
	for _, number := range unused {
		p.sendRevoked(number)
	}
	l := t.batch
	t.publish(err)
	l.leaveSegments(len(l.endpoints)) // last, so that Segment.Close returns after completion
	l.recycle(t.peer.engine)
}

// recycle returns the state to its pool.
func (l *batchState) recycle(e *Engine) {
	clear(l.endpoints)
	clear(l.blocks)
	l.endpoints, l.blocks, l.bytes = l.endpoints[:0], l.blocks[:0], 0
	e.states.Put(l)
}

// publish publishes the result.
func (t *Transfer) publish(err error) {
	t.batch = nil
	t.phase.Store(uint32(Done))
	t.mu.Lock()
	t.err = err
	t.state.Or(stateDone)
	waiters := t.waiters
	t.waiters = nil
	if t.done != nil {
		close(t.done)
	}
	t.mu.Unlock()
	for w := waiters; w != nil; {
		next := w.next // the woken goroutine reuses w
		w.wake <- struct{}{}
		w = next
	}
}

// reason returns the cause of cancellation, or err if the operation was not canceled.
func (t *Transfer) reason(err error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cause != nil && errors.Is(err, ErrCanceled) {
		return t.cause
	}
	return err
}

// blockError returns the Error for a block, starting at offset.
func (t *Transfer) blockError(block int, offset uint64, err error) error {
	e := newError(t.name, t.peer, "", err)
	if r := (*node.RequestError)(nil); errors.As(err, &r) {
		e.Rail = r.Rail
	}
	if block < len(t.batch.endpoints) {
		b := &t.batch.blocks[block]
		e.Op = "put"
		if b.Opcode == verbs.OpRDMARead {
			e.Op = "get"
		}
		e.Name = t.batch.endpoints[block].remote.name
		e.Index, e.Offset, e.Length = block, int64(b.RemoteOffset+offset), int64(b.Length-offset)
	}
	return e
}

// describe wraps err in an *Error if necessary.
func (t *Transfer) describe(err error) error {
	var e *Error
	if errors.As(err, &e) {
		return err
	}
	return newError(t.name, t.peer, "", t.reason(err))
}
