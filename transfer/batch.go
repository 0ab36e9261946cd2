package transfer

import (
	"context"
	"fmt"

	"ibverbx/internal/service"
	"ibverbx/verbs"
)

// Batch collects blocks that are moved together: one completion for all, and perhaps one notification behind them. It is empty after
// Submit and can be used again.
type Batch struct {
	peer   *Peer
	load   *load
	op     string
	notify bool
	verify bool
	err    error
}

// load is what a transfer moves. Loads are used again.
type load struct {
	blocks []service.Block
	parts  []part // by block
	body   []byte
	bytes  uint64
}

// part is the memory that a block uses.
type part struct {
	segment *Segment
	remote  *Remote
}

// Batch returns an empty Batch.
func (p *Peer) Batch() *Batch { return &Batch{peer: p} }

// Put writes bytes of this side to the peer. It is a Batch of one: see Submit.
func (p *Peer) Put(ctx context.Context, dst RemoteRange, src LocalRange) *Transfer {
	b := Batch{peer: p}
	return b.Put(dst, src).Submit(ctx)
}

// Get reads bytes of the peer into memory of this side. It is a Batch of one: see Submit.
func (p *Peer) Get(ctx context.Context, dst LocalRange, src RemoteRange) *Transfer {
	b := Batch{peer: p}
	return b.Get(dst, src).Submit(ctx)
}

// Notify sends a notification without data and returns when it has arrived at the peer's NIC.
func (p *Peer) Notify(ctx context.Context, body []byte) error {
	b := Batch{peer: p}
	return b.Notify(body).Do(ctx)
}

// Put adds a block to be written to the peer.
func (b *Batch) Put(dst RemoteRange, src LocalRange) *Batch {
	b.add("put", verbs.OpRDMAWrite, dst, src)
	return b
}

// Get adds a block to be read from the peer.
func (b *Batch) Get(dst LocalRange, src RemoteRange) *Batch {
	b.add("get", verbs.OpRDMARead, src, dst)
	return b
}

// Notify makes the peer's program get body, of at most MaxNotification bytes, when all blocks have arrived. A Batch has one
// notification. body is copied.
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

// Verify makes both sides compute digests (CRC32C) of all blocks after they were moved, and compares them. Blocks that were read wrong are read
// again once. Different digests end the transfer in ErrDigest. Nothing is notified before. Memory on neither side may
// change until the end. The segments of the peer must be open for reading, because a digest tells what is in them.
func (b *Batch) Verify() *Batch {
	b.verify = true
	return b
}

// begin names the operation after its first block.
func (b *Batch) begin(op string) *load {
	if b.load == nil {
		b.load = b.peer.engine.loads.Get().(*load)
		b.op = op
	} else if b.op != op && op != "notify" {
		b.op = "batch"
	}
	return b.load
}

// add adds a block. The first error is that of the Transfer.
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
		err = verbs.Invalidf("a place or a view is zero")
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
	l.parts = append(l.parts, part{s, r})
	l.bytes += uint64(view.n)
}

// check says what is wrong with a block.
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

// Submit starts the transfer. While Config.MaxOutstanding transfers are outstanding it waits until one completes or ctx is done; the Transfer then
// fails with ErrBusy. With a ctx that is already done, Submit never waits. Later ctx does not affect the transfer.
func (b *Batch) Submit(ctx context.Context) *Transfer {
	t := &Transfer{peer: b.peer, load: b.load, name: b.op, verify: b.verify}
	err, notify := b.err, b.notify
	*b = Batch{peer: b.peer}
	if t.load == nil {
		t.load, t.name = t.peer.engine.loads.Get().(*load), "batch"
	}
	t.total = t.load.bytes
	blocks := len(t.load.blocks) > 0
	for i := 0; t.verify && err == nil && i < len(t.load.parts); i++ {
		if r := t.load.parts[i].remote; r.access&Read == 0 {
			err = t.blockError(i, 0, fmt.Errorf("%w: Verify needs a segment that was opened for reading too", ErrDenied))
		}
	}
	var notes *note
	if err == nil {
		notes, err = t.peer.admit(ctx, t, notify)
	}
	if err != nil {
		t.load.recycle(t.peer.engine)
		t.settle(err)
		return t
	}
	t.begin(notes, blocks, notify)
	return t
}

// Do is Submit and Wait. If ctx ends before the transfer does, the transfer is canceled. Do returns when it has ended.
func (b *Batch) Do(ctx context.Context) error {
	t := b.Submit(ctx)
	if err := t.Wait(ctx); !t.isDone() {
		t.cancel(fmt.Errorf("%w: %w", ErrCanceled, err))
		return t.Wait(context.Background())
	}
	return t.Err()
}
