package files

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"ibverbx/internal/chunk"
	"ibverbx/internal/rpc"
	"ibverbx/transfer"
	"ibverbx/verbs"
)

// buffer is local memory that is also a segment. It outlives the segment, so chunks can be read and
// written until close.
type buffer struct {
	mem     *verbs.Memory
	segment *transfer.Segment
}

func newBuffer(e *transfer.Engine, size int) (*buffer, error) {
	mem, err := e.Node().Service().Alloc(size, nil)
	if err != nil {
		return nil, err
	}
	segment, err := e.Adopt("", mem, transfer.SegmentConfig{Local: true})
	if err != nil {
		return nil, errors.Join(err, mem.Free())
	}
	return &buffer{mem, segment}, nil
}

// close revokes the memory and frees it. If that fails, it can be called again.
func (b *buffer) close(ctx context.Context) error {
	if err := b.segment.Close(ctx); err != nil {
		return fmt.Errorf("the memory for chunks: %w", err)
	}
	return b.mem.Free()
}

// readPool is memory for outgoing chunks. It is allocated on first use and kept until close.
type readPool struct {
	closing sync.Mutex // held by close

	mu     sync.Mutex
	closed bool
	buffer *buffer
	free   chan uint32 // slots
}

// readSlot is a slot of a readPool.
type readSlot struct {
	buffer *buffer
	number uint32
}

func (s readSlot) bytes() []byte {
	return s.buffer.mem.Bytes()[int64(s.number)*chunk.Size:][:chunk.Size]
}

func (s readSlot) view(n int) transfer.LocalRange {
	return s.buffer.segment.Slice(int64(s.number)*chunk.Size, int64(n))
}

// take waits for a slot. share holds one token per slot of the same peer.
func (r *readPool) take(ctx context.Context, e *transfer.Engine, share rpc.Limit) (slot readSlot, err error) {
	if err := share.Take(ctx); err != nil {
		return readSlot{}, err
	}
	if slot, err = r.slot(ctx, e); err != nil {
		share.Give()
	}
	return slot, err
}

func (r *readPool) slot(ctx context.Context, e *transfer.Engine) (readSlot, error) {
	b, err := r.make(e)
	if err != nil {
		return readSlot{}, err
	}
	select {
	case n := <-r.free:
		return readSlot{b, n}, nil
	case <-ctx.Done():
		return readSlot{}, context.Cause(ctx)
	}
}

// make returns the memory, allocating it on first use.
func (r *readPool) make(e *transfer.Engine) (*buffer, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, ErrClosed
	}
	if r.buffer == nil {
		b, err := newBuffer(e, readSlots*chunk.Size)
		if err != nil {
			return nil, err
		}
		r.buffer, r.free = b, make(chan uint32, readSlots)
		for i := range uint32(readSlots) {
			r.free <- i
		}
	}
	return r.buffer, nil
}

func (r *readPool) release(s readSlot, share rpc.Limit) {
	r.free <- s.number
	share.Give()
}

// close waits until all slots are free, and frees the memory. If that fails, it can be called again.
func (r *readPool) close(ctx context.Context) error {
	r.closing.Lock()
	defer r.closing.Unlock()
	r.mu.Lock()
	r.closed = true
	b := r.buffer
	r.mu.Unlock()
	if b == nil {
		return nil
	}
	for i := range uint32(readSlots) {
		select {
		case <-r.free:
		case <-ctx.Done():
			r.giveBack(i)
			return fmt.Errorf("chunks are being read: %w", context.Cause(ctx))
		}
	}
	if err := b.close(ctx); err != nil {
		r.giveBack(readSlots)
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.buffer = nil
	return nil
}

// giveBack frees n slots for the next call of close. Their numbers are arbitrary, because slots are no longer used.
func (r *readPool) giveBack(n uint32) {
	for i := range n {
		r.free <- i
	}
}

// slot is memory for one incoming chunk. Each has a separate key, granted to one peer. One goroutine uses it at a time.
type slot struct {
	// buffer is nil until needed. grant is proc's access to it.
	buffer *buffer
	proc   *process
	grant  *transfer.Grant
}

// grantTo allocates memory if necessary, and grants a process access. A slot granted to another process gets new memory.
func (s *slot) grantTo(p *Peer, proc *process) error {
	if s.proc == proc && !s.grant.Ended() {
		return nil
	}
	if err := s.drop(); err != nil {
		return err
	}
	b, err := newBuffer(p.engine.cfg.Transfer, chunk.Size)
	if err != nil {
		return err
	}
	granted, err := p.transfer.Grant(b.segment, Write)
	if err != nil {
		return errors.Join(err, b.close(context.Background()))
	}
	s.buffer, s.proc, s.grant = b, proc, granted
	return nil
}

// slotTimeout bounds the wait for a slot to become unused.
const slotTimeout = 10 * time.Second

// drop revokes the memory and frees it. Afterwards the peer cannot reach it.
func (s *slot) drop() error {
	if s.buffer == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), slotTimeout)
	defer cancel()
	if err := s.buffer.close(ctx); err != nil {
		return err
	}
	s.buffer, s.proc, s.grant = nil, nil, nil
	return nil
}

// stage holds the slots of one transfer.
type stage struct {
	peer  *Peer
	slots int
	free  chan *slot
}

// newStage returns a stage with up to the given number of slots, and at most half of the free ones. It waits for one slot.
func (p *Peer) newStage(ctx context.Context, slots int) (*stage, error) {
	all := p.engine.staging
	if err := p.staging.Take(ctx); err != nil {
		return nil, err
	}
	if err := all.Take(ctx); err != nil {
		p.staging.Give()
		return nil, err
	}
	s := &stage{peer: p, slots: 1}
	for most := min(slots, 1+(cap(all)-len(all))/2); s.slots < most && p.staging.Try(); s.slots++ {
		if !all.Try() {
			p.staging.Give()
			break
		}
	}
	s.free = make(chan *slot, s.slots)
	for range s.slots {
		s.free <- &slot{}
	}
	return s, nil
}

// close releases all slots. Slots whose memory cannot be freed stay in use.
func (s *stage) close() error {
	errs := make([]error, s.slots)
	var work sync.WaitGroup
	for i := range errs {
		slot := <-s.free
		work.Go(func() {
			if errs[i] = slot.drop(); errs[i] == nil {
				s.peer.engine.staging.Give()
				s.peer.staging.Give()
			}
		})
	}
	work.Wait()
	return errors.Join(errs...)
}
