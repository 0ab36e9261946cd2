package stream

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"ibverbx"
	"ibverbx/internal/service"
	"ibverbx/verbs"
)

// slabBytes is the maximum slab size for rings smaller than that.
const slabBytes = 16 << 20

// slab is registered memory with the rings of several streams to one peer. That peer can write to all of it, and thus corrupt only its own
// streams.
type slab struct {
	mem    *verbs.Memory
	memory service.Memory
	region *ibverbx.Region
	// ring is the ring size. A block has one ring per direction.
	ring int
	// free lists the offsets of unused blocks, blocks is the number of all. The pool's mu guards free.
	free   []int
	blocks int
}

// block is a stream's memory: the receive ring, followed by the send ring.
type block struct {
	*slab
	offset int
}

func (b block) receive() []byte { return b.mem.Bytes()[b.offset:][:b.ring:b.ring] }
func (b block) send() []byte    { return b.mem.Bytes()[b.offset+b.ring:][:b.ring:b.ring] }

// grant returns the receive ring as granted to the peer.
func (b block) grant() ibverbx.RemoteRegion {
	r := b.region.Remote()
	return ibverbx.RemoteRegion{Addr: r.Addr + uint64(b.offset), Length: uint64(b.ring), RKeys: r.RKeys}
}

func (s *slab) bytes() int64 { return int64(s.blocks) * int64(s.ring) * 2 }
func (s *slab) empty() bool  { return len(s.free) == s.blocks }

// pool holds a peer's slabs.
type pool struct {
	peer *peer
	// growing is held while a slab is created. It is locked before mu.
	growing sync.Mutex

	mu    sync.Mutex
	slabs []*slab
	// closed makes the pool release empty slabs.
	closed bool
}

// get returns memory for a stream with the given ring size. limit bounds all slabs of the Node.
func (q *pool) get(ring int, limit int64) (block, error) {
	q.mu.Lock()
	b, ok := q.find(ring)
	q.mu.Unlock()
	if ok {
		return b, nil
	}
	q.growing.Lock()
	defer q.growing.Unlock()
	q.mu.Lock()
	b, ok = q.find(ring) // in a slab created meanwhile
	used := 0
	for _, s := range q.slabs {
		if s.ring == ring {
			used += s.blocks - len(s.free)
		}
	}
	q.mu.Unlock()
	if ok {
		return b, nil
	}
	h := q.peer.owner
	n := max(1, min(used, slabBytes/(2*ring)))
	if !h.reserve(int64(n*ring*2), limit) {
		if n = 1; !h.reserve(int64(ring*2), limit) {
			return b, fmt.Errorf("%w: rings have %d bytes, and may have %d", ErrBusy, h.reserved(), limit)
		}
	}
	s, err := q.make(ring, n)
	if err != nil {
		h.unreserve(int64(n * ring * 2))
		return b, err
	}
	b = block{s, s.free[n-1]}
	s.free = s.free[:n-1]
	q.mu.Lock()
	defer q.mu.Unlock()
	q.slabs = append(q.slabs, s)
	return b, nil
}

// find returns a free block. mu is held.
func (q *pool) find(ring int) (block, bool) {
	for _, s := range q.slabs {
		if n := len(s.free); s.ring == ring && n > 0 {
			b := block{s, s.free[n-1]}
			s.free = s.free[:n-1]
			return b, true
		}
	}
	return block{}, false
}

// make creates a slab with n blocks.
func (q *pool) make(ring, n int) (*slab, error) {
	mem, err := q.peer.owner.service.Alloc(n*ring*2, nil)
	if err != nil {
		return nil, err
	}
	s := &slab{mem: mem, memory: q.peer.owner.service.Register(mem), ring: ring, blocks: n}
	if s.region, err = s.memory.Region(q.peer.service, verbs.AccessLocalWrite|verbs.AccessRemoteWrite); err != nil {
		return nil, errors.Join(err, s.memory.Close(), mem.Free())
	}
	for i := range n {
		s.free = append(s.free, i*ring*2)
	}
	return s, nil
}

// put returns a block to its slab. It may be called with the shard's lock held. A peer keeps one empty slab.
func (q *pool) put(b block) {
	q.mu.Lock()
	defer q.mu.Unlock()
	b.free = append(b.free, b.offset)
	if b.empty() && (q.closed || len(q.slabs) > 1) {
		q.slabs = slices.DeleteFunc(q.slabs, func(s *slab) bool { return s == b.slab })
		q.peer.owner.retired.add(b.slab)
		go q.peer.owner.retired.free(q.peer.owner) // it would block the shard
	}
}

// close sets whether the pool releases empty slabs.
func (q *pool) close(closed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = closed
}

// sweep moves empty slabs to retired.
func (q *pool) sweep() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.slabs = slices.DeleteFunc(q.slabs, func(s *slab) bool {
		if s.empty() {
			q.peer.owner.retired.add(s)
		}
		return s.empty()
	})
}

// retiredSlabs holds the slabs removed from their pools but not yet freed. A dial that needs their memory can thus wait for it.
type retiredSlabs struct {
	// freeing is held while slabs are freed. It is locked before mu.
	freeing sync.Mutex

	mu    sync.Mutex // may be locked with any other lock
	slabs []*slab
}

// add takes an empty slab. The pool's lock is held.
func (t *retiredSlabs) add(s *slab) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.slabs = append(t.slabs, s)
}

// free frees all slabs added before. The shard's lock must not be held.
func (t *retiredSlabs) free(h *streamService) {
	t.freeing.Lock()
	defer t.freeing.Unlock()
	t.mu.Lock()
	slabs := t.slabs
	t.slabs = nil
	t.mu.Unlock()
	for _, s := range slabs {
		if err := errors.Join(s.memory.Close(), s.mem.Free()); err != nil {
			h.service.Log().Error("stream: rings cannot be freed", "error", err)
		}
		h.unreserve(s.bytes())
	}
}
