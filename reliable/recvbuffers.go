package reliable

import (
	"fmt"
	"math/bits"

	"ibverbx/reliable/core"
	"ibverbx/verbs"
)

// reserveReceives reserves n receive buffers of the PD's limit, and their CQ entries, until releaseReceives.
func (e *engine) reserveReceives(n int) error {
	if e.recvs.Add(int64(n)) > int64(e.ctx.recvs.limit) {
		e.recvs.Add(int64(-n))
		return e.ctx.tooManyConnections()
	}
	err := e.inbox.entries.reserve(n)
	if err != nil {
		e.recvs.Add(int64(-n))
	}
	return err
}

func (e *engine) releaseReceives(n int) {
	e.recvs.Add(int64(-n))
	e.inbox.entries.release(n)
}

// recvSizes holds the numbers of receive buffers of a context. All fields but size are numbers of buffers.
type recvSizes struct {
	size      int // the payload of a buffer, in bytes
	limit     int // the maximum per PD
	depth     int // the maximum per engine
	first     int // the minimum per engine
	slab      int // the number per allocation; it divides depth
	preferred int // the number per connection below the limit
	minimum   int // the minimum per connection
}

// connections is the maximum number of connections per engine.
func (s *recvSizes) connections() int { return s.depth / s.minimum }

// sizeReceives returns the recvSizes of a device. cfg has its defaults filled in.
func (cfg *Config) sizeReceives(inner verbs.Context, c *carrier, attr *verbs.DeviceAttr) (recvSizes, error) {
	s := recvSizes{size: cfg.ChunkBytes, first: firstRecvs, preferred: preferredShare, minimum: minShare}
	switch {
	case c.datagrams():
		port, err := inner.QueryPort(1)
		if err != nil {
			return s, err
		}
		s.size, s.first, s.minimum = max(min(s.size, datagramPayload(&port)), 1), 2*firstRecvs, 2*minShare
		if !c.srq {
			s.preferred = max(s.preferred, 2*cfg.Paths)
			s.minimum = s.preferred
		}
	case c.ownReceives():
		s.preferred, s.minimum = cfg.pathShare(), cfg.pathShare()
	}
	s.limit = cfg.RecvBytes / s.size
	s.depth = min(s.limit, maxRecvDepth)
	if c.srq {
		s.depth = min(s.depth, attr.MaxSRQWR)
	} else if c.datagrams() {
		s.depth = min(s.depth, attr.MaxQPWR*cfg.Paths)
	}
	if s.depth < s.minimum {
		return s, verbs.Invalidf("Config.RecvBytes is %d: want at least %d, for the %d receive buffers of a connection",
			cfg.RecvBytes, s.minimum*s.size, s.minimum)
	}
	s.slab = min(growRecvs, s.depth)
	for !c.srq && (s.depth-s.depth%s.slab)/s.minimum < s.depth/s.minimum {
		s.slab-- // so that the limit serves as many connections as it permits
	}
	s.depth -= s.depth % s.slab
	s.first = min(s.first, s.depth)
	return s, nil
}

// slab is a group of receive buffers that are allocated together. The buffers of a retired slab
// are parked instead of reposted, and its memory is freed once all of them are.
type slab struct {
	pool
	parked []bool // by buffer
	idle   int    // counts the parked buffers
}

// provide allocates the receive buffers for n connections: the preferred number below the limit, and at least the
// minimum. The connections share them; see divideCredit.
func (res *engineResources) provide(n int) error {
	ctx := res.engine.ctx
	if ctx.carrier.ownReceives() {
		return nil
	}
	for res.receives() < max(ctx.recvs.first, n*ctx.recvs.preferred) {
		err := res.grow()
		switch {
		case err == nil:
		case res.receives() < n*ctx.recvs.minimum:
			return err
		default:
			return nil
		}
	}
	return nil
}

// grow adds a slab and posts its buffers.
func (res *engineResources) grow() error {
	ctx := res.engine.ctx
	if res.receives()+ctx.recvs.slab > ctx.recvs.depth {
		return ctx.tooManyConnections()
	}
	if res.inUse == len(res.arrival) {
		if err := res.engine.reserveReceives(ctx.recvs.slab); err != nil {
			return err
		}
		p, err := newPool(res.pd, ctx.recvs.slab, res.arrivalSize())
		if err != nil {
			res.engine.releaseReceives(ctx.recvs.slab)
			return err
		}
		res.arrival = append(res.arrival, slab{pool: p, parked: make([]bool, ctx.recvs.slab)})
		res.arrival[res.inUse].parkAll()
	}
	s := &res.arrival[res.inUse]
	res.inUse++
	for i, parked := range s.parked {
		if parked {
			s.parked[i] = false
			res.recycle((res.inUse-1)*ctx.recvs.slab + i)
		}
	}
	s.idle = 0
	if res.srq != nil {
		res.refill.post(res.srq)
	}
	for i := range res.data {
		if d := &res.data[i]; res.srq == nil && !d.failed {
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

// shrink retires the slabs that the remaining connections do not need. A quarter more may remain, so that reconnecting peers
// cost no memory registrations.
func (res *engineResources) shrink() {
	ctx := res.engine.ctx
	need := max(ctx.recvs.first, res.connections*ctx.recvs.preferred)
	if res.connections == 0 || res.receives() <= need+need/4 {
		return
	}
	res.inUse = (need + ctx.recvs.slab - 1) / ctx.recvs.slab
	res.refill = res.park(res.refill)
	for i := range res.data {
		res.data[i].refill = res.park(res.data[i].refill)
	}
	res.trim()
}

// park removes the buffers of retired slabs from a list of buffers to be reposted.
func (res *engineResources) park(list refill) refill {
	kept := list[:0]
	for i := range list {
		_, _, _, n := untag(list[i].WRID)
		if int(n) < res.receives() {
			kept = append(kept, list[i])
			continue
		}
		res.recycle(int(n))
	}
	return kept
}

// trim frees the last slabs if they are retired and none of their buffers is posted.
func (res *engineResources) trim() {
	for n := len(res.arrival) - 1; n >= res.inUse && res.arrival[n].idle == res.engine.ctx.recvs.slab; n-- {
		res.arrival[n].free()
		res.engine.releaseReceives(res.engine.ctx.recvs.slab)
		res.arrival = res.arrival[:n]
	}
}

// receives is the number of receive buffers in use.
func (res *engineResources) receives() int { return res.inUse * res.engine.ctx.recvs.slab }

// allocated is the number of receive buffers in use and retired.
func (res *engineResources) allocated() int { return len(res.arrival) * res.engine.ctx.recvs.slab }

// recycle adds receive buffer i to the list of buffers to be reposted, or parks it.
func (res *engineResources) recycle(i int) {
	n := res.engine.ctx.recvs.slab
	s := &res.arrival[i/n]
	if i/n >= res.inUse {
		if !s.parked[i%n] {
			s.parked[i%n] = true
			s.idle++
		}
		return
	}
	to := &res.refill
	if res.srq == nil {
		to = &res.data[i%len(res.data)].refill
	}
	to.add(tagArrival.with(res.id, 0, uint32(i)), &s.pool, i%n)
}

// reclaim recycles the receive buffers of a UD QP that was reset.
func (res *engineResources) reclaim(d *datagramQP) {
	d.resets++
	if res.srq == nil {
		d.refill = d.refill[:0]
		for i := d.index; i < res.allocated(); i += len(res.data) {
			res.recycle(i)
		}
		res.trim()
		return
	}
	in := &res.engine.inbox
	for i := in.next; i < len(in.stash); i++ {
		wc := &in.stash[i]
		if t, id, _, n := untag(wc.WRID); t == tagArrival && res.isCurrent(id) && wc.QPN == d.qp.Num() {
			res.recycle(int(n))
		}
	}
}

// divideCredit divides the receive buffers among the connections. A peer with a smaller share is
// notified at once, before a new connection uses the rest.
func (res *engineResources) divideCredit() {
	if res.connections == 0 || res.engine.ctx.carrier.ownReceives() {
		return
	}
	share := advertised(roundShare(res.receives() / res.connections))
	if share == res.share {
		return
	}
	res.share = share
	for _, c := range res.engine.conns {
		if c == nil {
			continue
		}
		c.share = share
		if c.core != nil {
			c.step(&core.Event{Kind: core.EvCredit, Count: share})
		}
	}
}

// roundShare returns the largest of 1, 2, 3, 4, 6, 8, 12, 16, ... up to n, which is positive. So shares change seldom
// while connections open and close, and few peers are notified.
func roundShare(n int) int {
	p := 1 << (bits.Len(uint(n)) - 1)
	if n >= p+p/2 {
		p += p / 2
	}
	return p
}

// tooManyConnections is the error for a connection beyond the limit of receive buffers.
func (ctx *pathContext) tooManyConnections() error {
	return fmt.Errorf("%w: Config.RecvBytes of %d holds %d receive buffers of %d bytes, and each connection needs %d: raise RecvBytes, or set Flows so that QPs share connections",
		verbs.ErrLimit, ctx.cfg.RecvBytes, ctx.recvs.limit, ctx.recvs.size, ctx.recvs.minimum)
}
