package transfer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"ibverbx/internal/chunk"
	"ibverbx/internal/rpc"
)

// readPool is memory for chunks that are read from files and written to peers. It is made when it is first needed, and stays until
// the Engine is closed.
type readPool struct {
	mu      sync.Mutex
	segment *Segment
	free    chan uint32 // slots
}

// readSlot is a slot of a readPool.
type readSlot struct {
	segment *Segment
	number  uint32
}

func (s readSlot) bytes() []byte {
	return s.segment.Bytes()[int64(s.number)*chunk.Size:][:chunk.Size]
}

func (s readSlot) view(n int) View { return s.segment.Slice(int64(s.number)*chunk.Size, int64(n)) }

// take returns a slot, and waits for one. share has a token for each slot of the same peer.
func (r *readPool) take(ctx context.Context, e *Engine, share rpc.Limit) (slot readSlot, err error) {
	if err := share.Take(ctx); err != nil {
		return readSlot{}, err
	}
	if slot, err = r.slot(ctx, e); err != nil {
		<-share
	}
	return slot, err
}

func (r *readPool) slot(ctx context.Context, e *Engine) (readSlot, error) {
	r.mu.Lock()
	if r.segment == nil {
		segment, err := e.Alloc("", readSlots*chunk.Size, SegmentConfig{})
		if err != nil {
			r.mu.Unlock()
			return readSlot{}, err
		}
		r.segment, r.free = segment, make(chan uint32, readSlots)
		for i := range uint32(readSlots) {
			r.free <- i
		}
	}
	r.mu.Unlock()
	select {
	case n := <-r.free:
		if !r.segment.enter() {
			r.free <- n
			return readSlot{}, ErrClosed
		}
		return readSlot{r.segment, n}, nil
	case <-ctx.Done():
		return readSlot{}, context.Cause(ctx)
	}
}

func (r *readPool) release(s readSlot, share rpc.Limit) {
	s.segment.leave()
	r.free <- s.number
	<-share
}

// slot is memory for one chunk that a peer writes to. Each has a key of its own, which no other peer gets. One goroutine has it at a time.
type slot struct {
	// segment is nil until a chunk needs it. proc was lent it, and lent is what it was lent.
	segment *Segment
	proc    *process
	lent    *lending
}

// lend gets memory, unless the slot has some, and lends it to a process. A slot that another process was lent gets new memory.
func (s *slot) lend(p *Peer, proc *process) error {
	if s.proc == proc {
		return nil
	}
	if err := s.drop(); err != nil {
		return err
	}
	segment, err := p.engine.Alloc("", chunk.Size, SegmentConfig{})
	if err != nil {
		return err
	}
	region, err := segment.memory.Remote(p.service, Write.verbs())
	if err != nil {
		return errors.Join(err, segment.free())
	}
	s.segment, s.proc, s.lent = segment, proc, p.lendingOf(proc, segment, Write, region)
	return nil
}

// slotTimeout is how long a slot waits for the end of its use.
const slotTimeout = 10 * time.Second

// drop takes the memory back and frees it. After that nothing that the peer does reaches a chunk of this side.
func (s *slot) drop() error {
	if s.segment == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), slotTimeout)
	defer cancel()
	if err := s.segment.close(ctx, []*Peer{s.proc.peer}); err != nil {
		return fmt.Errorf("the memory for chunks: %w", err)
	}
	s.segment, s.proc, s.lent = nil, nil, nil
	return nil
}

// stage is the slots of one transfer.
type stage struct {
	peer  *Peer
	slots int
	free  chan *slot
}

// newStage returns a stage of at most so many slots, and of at most half of those that are free. It waits for one slot.
func (p *Peer) newStage(ctx context.Context, slots int) (*stage, error) {
	all := p.engine.files.staging
	if err := p.staging.Take(ctx); err != nil {
		return nil, err
	}
	if err := all.Take(ctx); err != nil {
		<-p.staging
		return nil, err
	}
	s := &stage{peer: p, slots: 1}
	for most := min(slots, 1+(cap(all)-len(all))/2); s.slots < most && p.staging.Try(); s.slots++ {
		if !all.Try() {
			<-p.staging
			break
		}
	}
	s.free = make(chan *slot, s.slots)
	for range s.slots {
		s.free <- &slot{}
	}
	return s, nil
}

// close takes all slots back. Those whose memory cannot be freed stay in use.
func (s *stage) close() error {
	errs := make([]error, s.slots)
	var work sync.WaitGroup
	for i := range errs {
		slot := <-s.free
		work.Go(func() {
			if errs[i] = slot.drop(); errs[i] == nil {
				<-s.peer.engine.files.staging
				<-s.peer.staging
			}
		})
	}
	work.Wait()
	return errors.Join(errs...)
}
