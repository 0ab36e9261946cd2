package transfer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"ibverbx/internal/seat"
	"ibverbx/node"
	"ibverbx/verbs"
)

// Transfer is a Batch that was submitted. It ends when no NIC of this side touches its memory any more.
type Transfer struct {
	peer *Peer
	proc *process
	// load and note are nil when they are of no more use. Peer.mu guards note.
	load *load
	note *note
	// name is "put", "get", "batch" or "notify".
	name         string
	verify, gets bool
	total        uint64
	op           seat.Op
	// state has bits, and phase is a Phase.
	state, phase atomic.Uint32
	// next and prev link the running transfers of the peer. Peer.mu guards them.
	next, prev *Transfer

	mu sync.Mutex
	// err is valid when stateDone is set. cause is why the transfer was canceled.
	err, cause error
	waiters    *waiter
	done       chan struct{}
	// stop ends the comparison of digests, and retry is the operation that reads again.
	stop  context.CancelCauseFunc
	retry *seat.Op
}

// Bits of Transfer.state.
const (
	stateSubmitted = 1 << iota // op was submitted
	stateCanceled
	stateDone
)

// errNoOutbox means that the peer's process has no outbox, because it is another one than before the wait for room.
var errNoOutbox = errors.New("no outbox")

// admit waits for room and makes a transfer one of those that are under way.
func (p *Peer) admit(ctx context.Context, t *Transfer, notify, wait bool) (notes *note, err error) {
	p.mu.Lock()
	for p.count >= p.engine.cfg.Queue && !p.engine.isClosed() {
		p.mu.Unlock()
		if !wait {
			return nil, newError(t.name, p, "", ErrBusy)
		}
		select {
		case <-p.room:
		case <-p.engine.done:
		case <-ctx.Done():
			return nil, newError(t.name, p, "", fmt.Errorf("%w: %w", ErrBusy, context.Cause(ctx)))
		}
		p.mu.Lock()
	}
	defer p.mu.Unlock()
	if p.count < p.engine.cfg.Queue-1 {
		signal(p.room)
	}
	if err = p.usable(t); err == nil && notify && p.proc != nil && p.proc.out == nil {
		err = errNoOutbox
	}
	if err == nil {
		err = t.load.enter(t)
	}
	if err != nil {
		signal(p.room) // for the next one that waits
		return nil, err
	}
	t.proc = p.proc
	t.proc.busy++
	p.count++
	p.running.add(t)
	if notify {
		notes = t.addNote()
	}
	return notes, nil
}

// usable says why the peer cannot be used. mu must be held.
func (p *Peer) usable(t *Transfer) error {
	err := p.err
	switch {
	case err != nil:
	case p.engine.isClosed():
		err = ErrClosed
	case len(t.load.parts) > 0: // enter compares their process with the present one
		return nil
	case p.proc == nil || p.proc.engine == 0:
		err = fmt.Errorf("%w: it has no transfer engine now", ErrPeerGone)
	default:
		return nil
	}
	return newError(t.name, p, "", err)
}

// addNote queues the notification of a transfer, and returns those to be submitted. If the blocks are all Puts it is posted
// behind them.
func (t *Transfer) addNote() *note {
	o := t.proc.out
	n := o.add(t, t.load.body)
	t.note = n
	alone := len(t.load.blocks) == 0
	n.ready = alone
	list := o.place(nil)
	if n.placed && !alone && !t.gets && !t.verify {
		n.ready = true
		n.fly()
		t.load.blocks = append(t.load.blocks, n.block[0])
		t.op.Notify, t.op.Imm = true, n.imm()
	}
	return list
}

// enter makes the segments of both sides stay. Peer.mu must be held.
func (l *load) enter(t *Transfer) error {
	for i, part := range l.parts {
		var err error
		switch r := part.remote; {
		case r.proc.dead != nil:
			err = r.proc.dead
		case r.proc != t.peer.proc:
			err = ErrRestarted
		case r.revoked:
			err = ErrRevoked
		case i > 0 && l.parts[i-1] == part:
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

// leave undoes enter for the first n blocks, as far as the peer's segments are concerned. It returns the numbers of the grants that
// were revoked and are not used any more. Peer.mu must be held.
func (l *load) leave(n int) (unused []uint32) {
	for i, part := range l.parts[:n] {
		if i > 0 && l.parts[i-1] == part {
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

// leaveSegments undoes enter for the first n blocks, as far as the segments of this side are concerned.
func (l *load) leaveSegments(n int) {
	for i, part := range l.parts[:n] {
		if i == 0 || l.parts[i-1] != part {
			part.segment.leave()
		}
	}
}

// begin submits the blocks, if there are any, and notifications that can be posted now. A transfer of a notification only may have ended
// before.
func (t *Transfer) begin(notes *note, blocks, notify bool) {
	switch {
	case blocks:
		t.op.Blocks, t.op.Replay, t.op.Incarnation, t.op.Sink = t.load.blocks, true, t.proc.incarnation, t
		t.peer.seat.Submit(&t.op)
		if t.state.Or(stateSubmitted)&stateCanceled != 0 {
			t.peer.seat.Cancel(&t.op)
		}
	case !notify:
		t.finish(nil)
	}
	t.peer.submitNotes(notes)
}

// Posted implements seat.Sink.
func (t *Transfer) Posted(*seat.Op) {}

// End implements seat.Sink: all blocks are there, or one has failed.
func (t *Transfer) End(op *seat.Op, err error) {
	if err != nil {
		block, offset := op.Failed()
		t.finish(t.blockError(block, offset, t.reason(err)))
		return
	}
	if t.verify {
		t.phase.Store(uint32(Verifying))
		go t.check()
		return
	}
	t.moved()
}

// moved goes on after the blocks: with the notification, if it was not posted with them.
func (t *Transfer) moved() {
	p := t.peer
	p.mu.Lock()
	n := t.note
	if n == nil || n.flying {
		p.mu.Unlock()
		t.finish(nil)
		return
	}
	t.phase.Store(uint32(Notifying))
	err := t.proc.dead
	if err == nil && t.state.Load()&stateCanceled != 0 { // otherwise cancel sees that the notification is ready
		err = ErrCanceled
	}
	var list *note
	if err == nil {
		n.ready = true
		list = n.post(nil)
	} else {
		list = n.drop()
		t.note = nil // so that cancel does not end the transfer too
	}
	p.mu.Unlock()
	p.submitNotes(list)
	if err != nil {
		t.finish(err)
	}
}

// finish ends the transfer. It must be called once.
func (t *Transfer) finish(err error) {
	p := t.peer
	if err != nil {
		err = t.describe(err)
	}
	p.mu.Lock()
	p.running.remove(t)
	p.count--
	var list *note
	if n := t.note; n != nil && n.transfer == t {
		if n.flying {
			n.land(err)
		}
		if err == nil {
			n.transfer = nil
			list = t.proc.out.release(nil)
		} else {
			list = n.drop()
		}
	}
	t.note = nil
	unused := t.load.leave(len(t.load.parts))
	left := t.proc.idle()
	dead := t.proc.dead != nil
	p.mu.Unlock()
	signal(p.room)
	p.submitNotes(list)
	for _, number := range unused {
		p.tell(number)
	}
	if left {
		p.tell(mailboxGrant)
	}
	if dead {
		t.proc.freeOutbox()
	}
	l := t.load
	t.settle(err)
	l.leaveSegments(len(l.parts)) // last, so that Segment.Close returns when the transfer has ended
	l.recycle(t.peer.engine)
}

// recycle gives a load back.
func (l *load) recycle(e *Engine) {
	clear(l.parts)
	clear(l.blocks)
	l.parts, l.blocks, l.bytes = l.parts[:0], l.blocks[:0], 0
	e.loads.Put(l)
}

// settle makes the result known.
func (t *Transfer) settle(err error) {
	t.load = nil
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
		next := w.next // the one that wakes up uses it again
		w.wake <- struct{}{}
		w = next
	}
}

// reason returns why an operation was canceled, if it was.
func (t *Transfer) reason(err error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cause != nil && errors.Is(err, ErrCanceled) {
		return t.cause
	}
	return err
}

// blockError returns the error of a block from an offset on.
func (t *Transfer) blockError(block int, offset uint64, err error) error {
	e := newError(t.name, t.peer, "", err)
	if r := (*node.RequestError)(nil); errors.As(err, &r) {
		e.Rail = r.Rail
	}
	if block < len(t.load.parts) {
		b := &t.load.blocks[block]
		e.Op = "put"
		if b.Opcode == verbs.OpRDMARead {
			e.Op = "get"
		}
		e.Name = t.load.parts[block].remote.name
		e.Index, e.Offset, e.Length = block, int64(b.RemoteOffset+offset), int64(b.Length-offset)
	}
	return e
}

// describe makes an *Error of the error.
func (t *Transfer) describe(err error) error {
	var e *Error
	if errors.As(err, &e) {
		return err
	}
	return newError(t.name, t.peer, "", t.reason(err))
}
