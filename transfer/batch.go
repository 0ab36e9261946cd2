package transfer

import (
	"context"
	"fmt"

	"ibverbx/internal/service"
	"ibverbx/verbs"
)

// Batch collects blocks that move as one transfer: a single completion, and optionally a notification after the last block. Submit empties
// the Batch, so it can be reused. A zero Batch fails with ErrClosed. A Batch is not safe for concurrent use. If a call to Put, Get or Notify is invalid, the submitted
// Transfer fails with the first such error.
type Batch struct {
	peer   *Peer
	state  *batchState
	op     string
	notify bool
	verify bool
	err    error
}

// batchState holds the blocks of a transfer. Loads are pooled.
type batchState struct {
	blocks    []service.Block
	endpoints []endpoints // by block
	body      []byte
	bytes     uint64
}

// endpoints is the memory used by a block.
type endpoints struct {
	segment *Segment
	remote  *Remote
}

// Batch returns an empty Batch.
func (p *Peer) Batch() *Batch { return &Batch{peer: p} }

// Put writes src to the peer's memory at dst. It submits a Batch with one block, see Batch.Submit.
func (p *Peer) Put(ctx context.Context, dst RemoteRange, src LocalRange) *Transfer {
	b := Batch{peer: p}
	return b.Put(dst, src).Submit(ctx)
}

// Get reads from the peer's memory at src into dst. It submits a Batch with one block, see Batch.Submit.
func (p *Peer) Get(ctx context.Context, dst LocalRange, src RemoteRange) *Transfer {
	b := Batch{peer: p}
	return b.Get(dst, src).Submit(ctx)
}

// Notify sends a notification without data and returns once it has arrived at the peer's NIC. It fails with ErrTooLong if body exceeds
// MaxNotification.
func (p *Peer) Notify(ctx context.Context, body []byte) error {
	b := Batch{peer: p}
	return b.Notify(body).Do(ctx)
}

// Put adds a block to write to the peer. The transfer fails with ErrRange if the block exceeds a segment, and with ErrDenied if the remote
// segment is not open for Write.
func (b *Batch) Put(dst RemoteRange, src LocalRange) *Batch {
	b.add("put", verbs.OpRDMAWrite, dst, src)
	return b
}

// Get adds a block to read from the peer. The transfer fails with ErrRange if the block exceeds a segment, and with ErrDenied if the remote
// segment is not open for Read or the local one is read-only.
func (b *Batch) Get(dst LocalRange, src RemoteRange) *Batch {
	b.add("get", verbs.OpRDMARead, src, dst)
	return b
}

// Notify adds a notification that the peer's program receives after all blocks have arrived. body is copied; its limit is MaxNotification
// bytes, else the transfer fails with ErrTooLong. A second notification in one Batch fails with verbs.ErrInvalid.
func (b *Batch) Notify(body []byte) *Batch {
	l := b.begin("notify")
	if b.notify && b.err == nil {
		b.err = newError("notify", b.peer, "", verbs.Invalidf("the batch has a notification"))
	}
	if len(body) > MaxNotification && b.err == nil {
		b.err = newError("notify", b.peer, "", fmt.Errorf("%d bytes, at most %d: %w", len(body), MaxNotification, ErrTooLong))
		return b
	}
	b.notify = true
	l.body = append(l.body[:0], body...)
	return b
}

// Verify compares CRC32C digests of all blocks on both sides after the data has moved and before the notification is sent. If a block that
// was read differs, all blocks are moved once more; if digests still differ, the transfer fails with ErrDigest. The memory on both sides
// must not change until the transfer completes. A digest reveals the contents, so the peer's segments must be open for Read, else the
// transfer fails with ErrDenied.
func (b *Batch) Verify() *Batch {
	b.verify = true
	return b
}

// begin names the operation after the first block.
func (b *Batch) begin(op string) *batchState {
	if b.state == nil {
		b.op = op
		if b.peer == nil || b.peer.engine == nil {
			b.state, b.err = &batchState{}, newError(op, nil, "", ErrClosed)
			return b.state
		}
		b.state = b.peer.engine.states.Get().(*batchState)
	} else if b.op != op && op != "notify" {
		b.op = "batch"
	}
	return b.state
}

// add appends a block. The first error becomes the error of the Transfer.
func (b *Batch) add(op string, opcode verbs.Opcode, place RemoteRange, view LocalRange) {
	l := b.begin(op)
	if b.err != nil {
		return
	}
	r, s := place.remote, view.segment
	var err error
	if r != nil && s != nil {
		err = b.check(opcode, place, view)
	} else {
		err = verbs.Invalidf("a RemoteRange or LocalRange is zero")
	}
	block := service.Block{LocalOffset: uint64(view.off), RemoteOffset: uint64(place.off), Length: uint64(view.n), Opcode: opcode}
	if err == nil {
		block.Remote = &r.region
		block.Local, err = s.local(b.peer)
	}
	if err != nil {
		e := newError(op, b.peer, "", err)
		if r != nil {
			e.Name = r.name
		}
		e.Index, e.Offset, e.Length = len(l.blocks), place.off, view.n
		b.err = e
		return
	}
	l.blocks = append(l.blocks, block)
	l.endpoints = append(l.endpoints, endpoints{s, r})
	l.bytes += uint64(view.n)
}

// check validates a block.
func (b *Batch) check(opcode verbs.Opcode, place RemoteRange, view LocalRange) error {
	r, s := place.remote, view.segment
	need := Write
	if opcode == verbs.OpRDMARead {
		need = Read
	}
	switch {
	case r.peer != b.peer:
		return verbs.Invalidf("the segment belongs to peer %s", r.peer)
	case s.engine != b.peer.engine:
		return verbs.Invalidf("the view belongs to another engine")
	case view.n < 0 || view.off < 0 || view.off > s.Len()-view.n:
		return fmt.Errorf("%w: %d bytes at %d of this side's segment %q, which has %d", ErrRange, view.n, view.off, s.name, s.Len())
	case place.off < 0 || place.off > r.Len()-view.n:
		return fmt.Errorf("%w: the segment has %d bytes", ErrRange, r.Len())
	case r.access&need == 0:
		return fmt.Errorf("%w: the segment was opened for %v", ErrDenied, r.access)
	case need == Read && s.readOnly:
		return fmt.Errorf("%w: this side's segment %q is read-only", ErrDenied, s.name)
	}
	return nil
}

// Submit starts the transfer and never returns nil. It blocks while Config.MaxOutstanding transfers are outstanding; if ctx is done first,
// the Transfer fails with ErrBusy. Submit never blocks if ctx is already done. ctx does not affect the transfer after Submit has returned.
func (b *Batch) Submit(ctx context.Context) *Transfer {
	if b.peer == nil || b.peer.engine == nil {
		t := &Transfer{}
		t.publish(newError("batch", nil, "", ErrClosed))
		return t
	}
	t := &Transfer{peer: b.peer, batch: b.state, name: b.op, verify: b.verify}
	err, notify := b.err, b.notify
	if ctx == nil && err == nil {
		err = newError("batch", b.peer, "", checkContext(ctx))
	}
	*b = Batch{peer: b.peer}
	if t.batch == nil {
		t.batch, t.name = t.peer.engine.states.Get().(*batchState), "batch"
	}
	t.total = t.batch.bytes
	blocks := len(t.batch.blocks) > 0
	for i := 0; t.verify && err == nil && i < len(t.batch.endpoints); i++ {
		if r := t.batch.endpoints[i].remote; r.access&Read == 0 {
			err = t.blockError(i, 0, fmt.Errorf("%w: Verify needs a segment that was opened for reading too", ErrDenied))
		}
	}
	var notes *notification
	if err == nil {
		notes, err = t.peer.admit(ctx, t, notify)
	}
	if err != nil {
		t.batch.recycle(t.peer.engine)
		t.publish(err)
		return t
	}
	t.begin(notes, blocks, notify)
	return t
}

// Do calls Submit and waits for completion. If ctx is done first, Do cancels the transfer, waits for its requests, and returns its error.
func (b *Batch) Do(ctx context.Context) error {
	t := b.Submit(ctx)
	if err := t.Wait(ctx); !t.isDone() {
		t.cancel(fmt.Errorf("%w: %w", ErrCanceled, err))
		return t.Wait(context.Background())
	}
	return t.Err()
}
