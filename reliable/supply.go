package reliable

import (
	"fmt"
	"math/bits"
	"sync/atomic"

	"ibverbx/reliable/core"
	"ibverbx/verbs"
)

// budget counts the receive buffers of a PD. Its engines share the limit.
type budget struct {
	limit int64
	used  atomic.Int64
}

// take reports whether there is room for n more buffers, and counts them.
func (b *budget) take(n int) bool {
	if b.used.Add(int64(n)) > b.limit {
		b.used.Add(int64(-n))
		return false
	}
	return true
}

// put undoes take.
func (b *budget) put(n int) { b.used.Add(int64(-n)) }

// afford takes the budget and the CQ entries for n more receive buffers.
func (e *engine) afford(n int) error {
	if !e.budget.take(n) {
		return e.ctx.tooManyConnections()
	}
	err := e.inbox.room.reserve(n)
	if err != nil {
		e.budget.put(n)
	}
	return err
}

// refund undoes afford.
func (e *engine) refund(n int) {
	e.budget.put(n)
	e.inbox.room.release(n)
}

// recvSizes says how many receive buffers a context uses. All fields but size are numbers of buffers.
type recvSizes struct {
	size  int // what one holds of a chunk, in bytes
	limit int // the limit of a PD
	depth int // the limit of an engine
	first int // what an engine has at least
	slab  int // what is allocated at a time; it divides depth
	usual int // what a connection gets while there are enough
	least int // what a connection needs
}

// connections is the number of connections that an engine serves.
func (s *recvSizes) connections() int { return s.depth / s.least }

// sizeReceives returns the numbers for a device. Defaults are filled in.
func (cfg *Config) sizeReceives(inner verbs.Context, c *carrier, attr *verbs.DeviceAttr) (recvSizes, error) {
	s := recvSizes{size: cfg.ChunkBytes, first: firstRecvs, usual: usualShare, least: leastShare}
	switch {
	case c.datagrams():
		port, err := inner.QueryPort(1)
		if err != nil {
			return s, err
		}
		s.size, s.first, s.least = max(min(s.size, datagramPayload(&port)), 1), 2*firstRecvs, 2*leastShare
		if !c.srq {
			s.usual = max(s.usual, 2*cfg.Paths)
			s.least = s.usual
		}
	case c.ownReceives():
		s.usual, s.least = cfg.pathShare(), cfg.pathShare()
	}
	s.limit = cfg.RecvBytes / s.size
	s.depth = min(s.limit, maxRecvDepth)
	if c.srq {
		s.depth = min(s.depth, attr.MaxSRQWR)
	} else if c.datagrams() {
		s.depth = min(s.depth, attr.MaxQPWR*cfg.Paths)
	}
	if s.depth < s.least {
		return s, verbs.Invalidf("Config.RecvBytes is %d: want at least %d, for the %d receive buffers of a connection",
			cfg.RecvBytes, s.least*s.size, s.least)
	}
	s.slab = min(growRecvs, s.depth)
	for !c.srq && (s.depth-s.depth%s.slab)/s.least < s.depth/s.least {
		s.slab-- // connections need many buffers, and the limit is to hold as many connections as it says
	}
	s.depth -= s.depth % s.slab
	s.first = min(s.first, s.depth)
	return s, nil
}

// slab is a number of receive buffers that are allocated together. The buffers of a slab that is no longer in use
// are parked instead of posted again, and its memory is freed once all of them are.
type slab struct {
	pool
	parked []bool // by buffer
	idle   int    // counts the parked buffers
}

// supply provides the receive buffers for n connections: the quota of each, while the budget lasts, and at least what
// all of them need. The connections share them, see divide.
func (h *hub) supply(n int) error {
	ctx := h.engine.ctx
	if ctx.carrier.ownReceives() {
		return nil
	}
	for h.receives() < max(ctx.recvs.first, n*ctx.recvs.usual) {
		err := h.grow()
		switch {
		case err == nil:
		case h.receives() < n*ctx.recvs.least:
			return err
		default:
			return nil
		}
	}
	return nil
}

// grow takes one more slab into use. Its buffers are posted.
func (h *hub) grow() error {
	ctx := h.engine.ctx
	if h.receives()+ctx.recvs.slab > ctx.recvs.depth {
		return ctx.tooManyConnections()
	}
	if h.inUse == len(h.arrival) {
		if err := h.engine.afford(ctx.recvs.slab); err != nil {
			return err
		}
		p, err := newPool(h.pd, ctx.recvs.slab, h.arrivalSize())
		if err != nil {
			h.engine.refund(ctx.recvs.slab)
			return err
		}
		h.arrival = append(h.arrival, slab{pool: p, parked: make([]bool, ctx.recvs.slab)})
		h.arrival[h.inUse].parkAll()
	}
	s := &h.arrival[h.inUse]
	h.inUse++
	for i, parked := range s.parked {
		if parked {
			s.parked[i] = false
			h.recycle((h.inUse-1)*ctx.recvs.slab + i)
		}
	}
	s.idle = 0
	if h.srq != nil {
		h.refill.post(h.srq)
	}
	for i := range h.data {
		if d := &h.data[i]; h.srq == nil && !d.failed {
			d.refill.post(d.qp)
		}
	}
	return nil
}

func (s *slab) parkAll() {
	for i := range s.parked {
		s.parked[i] = true
	}
	s.idle = len(s.parked)
}

// shrink retires the slabs that the remaining connections do not need. A quarter more may stay, so that peers that come and go
// do not cost memory registrations.
func (h *hub) shrink() {
	ctx := h.engine.ctx
	need := max(ctx.recvs.first, h.shares*ctx.recvs.usual)
	if h.shares == 0 || h.receives() <= need+need/4 {
		return
	}
	h.inUse = (need + ctx.recvs.slab - 1) / ctx.recvs.slab
	h.refill = h.park(h.refill)
	for i := range h.data {
		h.data[i].refill = h.park(h.data[i].refill)
	}
	h.trim()
}

// park takes the buffers of retired slabs off a list of those that wait to be posted.
func (h *hub) park(list refill) refill {
	kept := list[:0]
	for i := range list {
		_, _, _, n := untag(list[i].WRID)
		if int(n) < h.receives() {
			kept = append(kept, list[i])
			continue
		}
		h.recycle(int(n))
	}
	return kept
}

// trim frees the last slabs if they are retired and none of their buffers is posted.
func (h *hub) trim() {
	for n := len(h.arrival) - 1; n >= h.inUse && h.arrival[n].idle == h.engine.ctx.recvs.slab; n-- {
		h.arrival[n].free()
		h.engine.refund(h.engine.ctx.recvs.slab)
		h.arrival = h.arrival[:n]
	}
}

// receives is the number of receive buffers in use.
func (h *hub) receives() int { return h.inUse * h.engine.ctx.recvs.slab }

// exist is the number of receive buffers in use and retired.
func (h *hub) exist() int { return len(h.arrival) * h.engine.ctx.recvs.slab }

// recycle marks receive buffer i as free.
func (h *hub) recycle(i int) {
	n := h.engine.ctx.recvs.slab
	s := &h.arrival[i/n]
	if i/n >= h.inUse {
		if !s.parked[i%n] {
			s.parked[i%n] = true
			s.idle++
		}
		return
	}
	to := &h.refill
	if h.srq == nil {
		to = &h.data[i%len(h.data)].refill
	}
	to.add(tagArrival.with(h.id, 0, uint32(i)), &s.pool, i%n)
}

// reclaim makes the receive buffers of a UD QP free that was reset.
func (h *hub) reclaim(d *datagramQP) {
	d.lives++
	if h.srq == nil {
		d.refill = d.refill[:0]
		for i := d.index; i < h.exist(); i += len(h.data) {
			h.recycle(i)
		}
		h.trim()
		return
	}
	in := &h.engine.inbox
	for i := in.next; i < len(in.stash); i++ {
		wc := &in.stash[i]
		if t, id, _, n := untag(wc.WRID); t == tagArrival && h.is(id) && wc.QPN == d.qp.Num() {
			h.recycle(int(n))
		}
	}
}

// divide shares the receive buffers among the connections. A peer whose share has become smaller is
// told at once, before a new connection uses the rest.
func (h *hub) divide() {
	if h.shares == 0 || h.engine.ctx.carrier.ownReceives() {
		return
	}
	share := advertised(rounded(h.receives() / h.shares))
	if share == h.share {
		return
	}
	h.share = share
	for _, c := range h.engine.conns {
		if c == nil {
			continue
		}
		c.share = share
		if c.core != nil {
			c.step(&core.Event{Kind: core.EvCredit, Count: share})
		}
	}
}

// rounded returns the largest of 1, 2, 3, 4, 6, 8, 12, 16, ... up to n, which is positive. So shares change seldom
// while connections come and go, and few peers have to be told.
func rounded(n int) int {
	p := 1 << (bits.Len(uint(n)) - 1)
	if n >= p+p/2 {
		p += p / 2
	}
	return p
}

// tooManyConnections is the error of a connection that would leave too few receive buffers to each.
func (ctx *pathContext) tooManyConnections() error {
	return fmt.Errorf("%w: Config.RecvBytes of %d holds %d receive buffers of %d bytes, and each connection needs %d: raise RecvBytes, or set Flows so that QPs share connections",
		verbs.ErrLimit, ctx.cfg.RecvBytes, ctx.recvs.limit, ctx.recvs.size, ctx.recvs.least)
}
