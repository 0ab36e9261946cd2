package ibverbx

import (
	"errors"
	"fmt"
	"slices"

	"ibverbx/internal/ring"
	"ibverbx/verbs"
)

// sharedReceives are the engine's receives for all VirtualQPs of a VirtualCQ, in one SRQ per rail. Their cost does
// not depend on the number of lanes. A receive's index is the position of its record:
//
//	rail 0: | 0 | 1 | ... | depth-1 |  rail 1: | 0 | 1 | ...      16 bytes each
//
// When fewer than low receives are left in an SRQ, all consumed ones are reposted together. They do not
// provide back-pressure: a VirtualQP whose peer sends more than it can hold fails, without affecting
// the others.
type sharedReceives struct {
	depth  int     // per SRQ
	low    int     // half of depth
	region *Region // holds arriving records
	rails  []sharedRail
	chain  []verbs.RecvWR // buffer of refill
	stats  *cqCounters    // counts refills
}

type sharedRail struct {
	srq  verbs.SRQ // nil if the device had failed, or after an overrun of the CQ
	free []uint32  // indices of receives outside the SRQ
}

func newSharedReceives(c *VirtualCQ, depth int) (*sharedReceives, error) {
	r := c.rails
	h := &sharedReceives{depth: depth, low: depth / 2, chain: make([]verbs.RecvWR, depth), stats: &c.stats}
	var err error
	if h.region, err = r.allocRegion(len(r.rails) * depth * recordSize); err != nil {
		return nil, err
	}
	h.rails = make([]sharedRail, len(r.rails))
	for i := range r.rails {
		if err := h.open(r, i); err != nil && !errors.Is(err, verbs.ErrDeviceFatal) {
			return nil, errors.Join(fmt.Errorf("rail %d (%s): %w", i, r.rails[i].name, err), h.close())
		}
	}
	return h, nil
}

// open creates a rail's SRQ unless it exists, and fills it.
func (h *sharedReceives) open(r *Rails, rail int) error {
	one := &h.rails[rail]
	if !h.region.registered(uint8(rail)) {
		return errUnregistered
	}
	if one.srq == nil {
		pd, err := r.domain(rail)
		if err != nil {
			return err
		}
		srq, err := pd.CreateSRQ(verbs.SRQConfig{MaxWR: h.depth, MaxSGE: 1})
		if err != nil {
			return err
		}
		one.srq, one.free = srq, make([]uint32, h.depth)
		for k := range one.free {
			one.free[k] = uint32(k)
		}
	}
	return h.refill(rail)
}

func (h *sharedReceives) close() error {
	for i := range h.rails {
		if h.rails[i].srq == nil {
			continue
		}
		if err := h.rails[i].srq.Close(); err != nil {
			return err // lanes still use it, so the memory must stay
		}
	}
	return h.region.free()
}

// recordOffset returns the offset of a receive's record.
func (h *sharedReceives) recordOffset(rail uint8, index uint32) int {
	return (int(rail)*h.depth + int(index)) * recordSize
}

// record returns a receive's record.
func (h *sharedReceives) record(rail uint8, index uint32) []byte {
	return h.region.Bytes()[h.recordOffset(rail, index):][:recordSize]
}

// recycle returns a consumed receive, and refills the SRQ if it has run low.
func (h *sharedReceives) recycle(rail uint8, index uint32) error {
	r := &h.rails[rail]
	r.free = append(r.free, index)
	if !h.isLow(int(rail)) {
		return nil
	}
	return h.refill(int(rail))
}

// isLow reports whether a rail's SRQ must be refilled.
func (h *sharedReceives) isLow(rail int) bool { return h.depth-len(h.rails[rail].free) < h.low }

// refill posts all receives outside a rail's SRQ in one call. Receives that the NIC refuses are posted later.
func (h *sharedReceives) refill(rail int) error {
	r := &h.rails[rail]
	chain := h.chain[:len(r.free)]
	for i, index := range r.free {
		chain[i].WRID = uint64(newTag(0, kindRecv, 0, index))
		chain[i].NumSGE = 1
		chain[i].SGE[0] = verbs.SGE{
			Addr: h.region.addr + uint64(h.recordOffset(uint8(rail), index)), Length: recordSize, LKey: h.region.lkeys[rail],
		}
	}
	n, err := r.srq.PostRecv(chain)
	h.stats.refills.Add(1)
	h.stats.refilled.Add(uint64(n))
	r.free = append(r.free[:0], r.free[n:]...)
	if err != nil && !isBackPressure(err) {
		return err
	}
	return nil
}

// shareReceives creates the SRQs and reserves CQ space for their completions.
func (c *VirtualCQ) shareReceives(depth int) (err error) {
	if depth < 2 || depth > maxDepth {
		return verbs.Invalidf("CQConfig.SharedReceives is %d: want 2 to %d, or 0", depth, maxDepth)
	}
	if err := c.reserveAll(depth); err != nil {
		return err
	}
	c.shared, err = newSharedReceives(c, depth)
	return err
}

// dataPool holds the data receives for SENDs to all VirtualQPs of a VirtualCQ, in one SRQ per rail:
//
//	           PostRecv            feed              a message
//	free slot ----------> spare --------> in an SRQ ----------> taken ----> reported: free slot
//	                        ^--- no QP uses the SRQ -'            |
//	                        ^--- the VirtualQP is closed, or the peer repeats the message
//
// An SRQ keeps its receives until messages consume them or no QP uses it. Each rail's SRQ therefore has at most its
// share of the pool. The rest is spare and replaces what messages consume.
type dataPool struct {
	cq      *VirtualCQ
	slots   []RecvWR          // the program's receives, by slot
	in      []*dataQueue      // the SRQ that holds the receive, by slot; or nil
	free    []uint32          // empty slots
	spare   ring.Ring[uint32] // slots whose receive is in no SRQ, oldest first
	posted  int               // number of receives in SRQs
	rails   []*dataQueue      // SRQ by rail; nil while no lane uses one
	retired []verbs.SRQ       // SRQs to close once their QPs are closed
	queues  uint16            // number of SRQs ever created
	maxSGE  uint8             // maximum number of SGEs per receive
}

// dataQueue is a rail's SRQ.
type dataQueue struct {
	srq    verbs.SRQ
	base   tag // common part of the tags of its receives
	rail   uint8
	users  int // number of lanes that use it
	posted int // number of receives in it
}

// poolLane replaces the lane in the tags of the pool's receives.
const poolLane = maxLanes - 1

// wcPooled marks a completion of the pool whose WRID is a slot. Programs never see it.
const wcPooled WCFlags = 1 << 7

// shareData creates the pool and reserves CQ space for its completions.
func (c *VirtualCQ) shareData(depth int) error {
	if depth < 1 || depth > maxDepth {
		return verbs.Invalidf("CQConfig.SharedData is %d: want 1 to %d, or 0", depth, maxDepth)
	}
	p := &dataPool{
		cq: c, slots: make([]RecvWR, depth), in: make([]*dataQueue, depth), free: make([]uint32, depth),
		spare: ring.New[uint32](depth), rails: make([]*dataQueue, len(c.cqs)), maxSGE: MaxSGE,
	}
	for i := range c.rails.rails {
		r := &c.rails.rails[i]
		a := &r.attr
		if a.Capabilities&verbs.CapSRQ == 0 || a.MaxSRQWR < depth {
			return fmt.Errorf("CQConfig.SharedData is %d: %w: an SRQ of rail %d (%s) has at most %d receives", depth, verbs.ErrNotSupported, i, r.name, a.MaxSRQWR)
		}
		p.maxSGE = uint8(min(int(p.maxSGE), a.MaxSGE, a.MaxSRQSGE))
	}
	for i := range p.free {
		p.free[i] = uint32(depth - 1 - i) // so that slot 0 is used first
	}
	c.pool = p
	return c.reserveAll(depth)
}

// PostRecv adds data receives to the pool of CQConfig.SharedData and returns the number accepted: wrs[:n] were
// accepted, the rest was not. A SEND to any VirtualQP of the VirtualCQ consumes the oldest receive of its rail, and
// the completion names the VirtualQP. Each rail gets an equal share of the pool, so post at least one receive per
// rail.
//
// With an empty pool, senders wait. Software NICs and package reliable then serve them round-robin. Other NICs retry
// a refused SEND at equal intervals, and the first one to arrive gets the next receive.
//
// A receive stays in the pool when a VirtualQP fails or is closed, except one that a message was filling at the
// failure: it completes with an error. Notification receives belong to a VirtualQP, except with a single lane without
// failover, which takes everything from the pool. err is verbs.ErrQueueFull if the pool is full: poll, then post the
// rest. It is verbs.ErrInvalid if wrs[n] is invalid or SharedData is zero, and verbs.ErrClosed after Close or for a
// closed Region.
func (c *VirtualCQ) PostRecv(wrs []RecvWR) (n int, err error) {
	if c.pool == nil {
		return 0, fmt.Errorf("post receive: %w", verbs.Invalidf("the virtual CQ has no pool: set CQConfig.SharedData, or use VirtualQP.PostRecv"))
	}
	c.guard.Enter("ibverbx: PostRecv", misuse)
	n, err = c.pool.post(wrs)
	c.pool.feed()
	c.guard.Leave()
	return n, err
}

// post accepts receives until one is invalid or does not fit.
func (p *dataPool) post(wrs []RecvWR) (n int, err error) {
	if p.slots == nil {
		return 0, fmt.Errorf("post receive: virtual CQ %d: %w", p.cq.num, verbs.ErrClosed)
	}
	for n = range wrs {
		length, err := p.cq.rails.checkRecv(&wrs[n], p.maxSGE)
		if err == nil && length == 0 {
			err = verbs.Invalidf("a receive without bytes waits for a notification: use VirtualQP.PostRecv")
		}
		if err != nil {
			return n, fmt.Errorf("post receive: virtual CQ %d: receive %d of the chain: %w", p.cq.num, n, err)
		}
		last := len(p.free) - 1
		if last < 0 {
			return n, verbs.ErrQueueFull
		}
		p.slots[p.free[last]] = wrs[n]
		*p.spare.Extend() = p.free[last]
		p.free = p.free[:last]
	}
	return len(wrs), nil
}

// join returns the SRQ of a rail for a new QP, and creates it if necessary.
func (p *dataPool) join(rail int) (*dataQueue, error) {
	if q := p.rails[rail]; q != nil {
		q.users++
		return q, nil
	}
	pd, err := p.cq.rails.domain(rail)
	if err != nil {
		return nil, err
	}
	srq, err := pd.CreateSRQ(verbs.SRQConfig{MaxWR: len(p.slots), MaxSGE: int(p.maxSGE)})
	if err != nil {
		return nil, err
	}
	p.queues++
	p.rails[rail] = &dataQueue{srq: srq, base: newTag(p.queues, kindRecv, poolLane, 0), rail: uint8(rail), users: 1}
	p.feed()
	return p.rails[rail], nil
}

// leave records that a lane's QP is in RESET or closed.
func (p *dataPool) leave(l *lane) {
	if l.queue != nil {
		p.leaveQueue(l.queue)
		l.queue = nil
	}
}

// leaveQueue records that a QP no longer uses an SRQ. After the last one, the SRQ's receives become spare.
func (p *dataPool) leaveQueue(q *dataQueue) {
	if q.users--; q.users > 0 {
		return
	}
	if p.rails[q.rail] == q {
		p.rails[q.rail] = nil
	}
	p.retired = append(p.retired, q.srq)
	for slot, in := range p.in {
		if in == q {
			p.unpost(uint32(slot))
			p.restore(uint32(slot))
		}
	}
	p.feed()
}

// settle closes unused SRQs and feeds the others.
func (p *dataPool) settle() {
	if p == nil {
		return
	}
	p.retired = slices.DeleteFunc(p.retired, func(s verbs.SRQ) bool { return s.Close() == nil })
	p.feed()
}

// claim removes a completed receive from its SRQ. ok is false if no SRQ of the rail holds it.
func (p *dataPool) claim(rail uint8, t tag) (slot uint32, ok bool) {
	slot = t.entry()
	if p == nil || int(slot) >= len(p.in) {
		return 0, false
	}
	if q := p.in[slot]; q == nil || q.rail != rail || q.base|tag(slot) != t {
		return 0, false
	}
	p.unpost(slot)
	return slot, true
}

// unpost records that a receive has left its SRQ.
func (p *dataPool) unpost(slot uint32) {
	p.in[slot].posted--
	p.in[slot] = nil
	p.posted--
}

// restore makes a consumed receive spare that the program will not see.
func (p *dataPool) restore(slot uint32) { *p.spare.Extend() = slot }

// restoreAndFeed is restore for completions. It feeds immediately, because an empty SRQ does not get further
// completions.
func (p *dataPool) restoreAndFeed(slot uint32) {
	p.restore(slot)
	p.feed()
}

// dropped restores the receive of a completion that the program will not get.
func (p *dataPool) dropped(wc *WC) {
	if wc.Flags&wcPooled != 0 {
		p.restore(uint32(wc.WRID))
	}
}

// deliver replaces slots by the program's WRIDs in completions for the program.
func (p *dataPool) deliver(wcs []WC) {
	for i := range wcs {
		if wc := &wcs[i]; wc.Flags&wcPooled != 0 {
			slot := uint32(wc.WRID)
			wc.WRID, wc.Flags = p.slots[slot].WRID, wc.Flags&^wcPooled
			p.free = append(p.free, slot)
		}
	}
}

// railShare is the maximum number of receives in a rail's SRQ.
func (p *dataPool) railShare() int {
	return (p.spare.Len() + p.posted + len(p.rails) - 1) / len(p.rails)
}

// feedLow feeds the SRQs if a lane's SRQ has used half of its share, so that spare receives are posted in chains.
func (p *dataPool) feedLow(l *lane) {
	if p != nil && l.queue != nil && p.spare.Len() > 0 && 2*l.queue.posted <= p.railShare() {
		p.feed()
	}
}

// feed posts spare receives until each SRQ has its share. Receives that a NIC refuses, or whose memory is not
// registered with it, stay spare.
func (p *dataPool) feed() {
	for _, q := range p.rails {
		if q == nil {
			continue
		}
		for more := true; more; {
			more = p.fill(q, min(p.railShare()-q.posted, p.spare.Len()))
		}
	}
}

// fill posts a chain of at most n receives. It returns true if the chain was full and posted completely.
func (p *dataPool) fill(q *dataQueue, n int) bool {
	chain, k := p.cq.recvChain[:], 0
	for ; n > 0 && k < len(chain); n-- {
		slot := p.spare.Pop()
		wr := &p.slots[slot]
		if !wr.physical(q.rail, &chain[k]) {
			p.restore(slot)
			continue
		}
		chain[k].WRID = uint64(q.base | tag(slot))
		k++
	}
	if k == 0 {
		return false
	}
	done, err := q.srq.PostRecv(chain[:k])
	for i := range chain[:k] {
		slot := tag(chain[i].WRID).entry()
		if i >= done {
			p.restore(slot)
			continue
		}
		p.in[slot] = q
		q.posted++
		p.posted++
	}
	if err != nil && !isBackPressure(err) && !errors.Is(err, verbs.ErrDeviceFatal) && p.cq.err == nil {
		p.cq.err = fmt.Errorf("post receive on rail %d (%s): %w", q.rail, p.cq.rails.rails[q.rail].name, err)
	}
	return done == len(chain)
}

// receivedPooled handles a receive of the pool that completed on the message lane.
func (r *receiver) receivedPooled(l *lane, wc *verbs.WC, t tag) {
	p, f := r.setup.pool, r.failover
	slot, ok := p.claim(l.rail, t)
	switch {
	case !ok:
		r.setup.cq.countStale(l)
	case l.recovery.state == laneGone || l.recovery.state == laneIdle:
		r.setup.cq.countStale(l) // the Down message did not count it, so the peer retries it
		p.restoreAndFeed(slot)
	case wc.Status == verbs.StatusSuccess:
		l.recovery.received++
		r.completePooled(slot, wc)
	case f.survives(l, wc.Status):
		p.restoreAndFeed(slot)
		f.laneDown(l, statusError(wc.Status))
	default:
		r.completePooled(slot, wc)
		f.failed(l, wc.Status)
	}
	p.feedLow(l)
	if f.state != stateConnected {
		r.flushNotifications()
	}
}

// completePooled completes a receive of the pool.
func (r *receiver) completePooled(slot uint32, wc *verbs.WC) {
	r.done.Reserve(r.done.Len() + r.notifications.Len() + 1)
	r.completeMessage(uint64(slot), wc)
	r.done.At(r.done.Tail() - 1).Flags |= wcPooled
}

// stopQP moves the QP of a failed VirtualQP's lane to RESET. RESET would lose receives of an SRQ with unpolled
// completions, so a lane that uses an SRQ moves to ERR only; if it is the pool's, leavePool resets it later. If the
// response to a READ or an atomic might still be written to memory, it moves to RESET anyway, and such receives are lost.
func (l *lane) stopQP() {
	reset := l.owner.setup.srqOf(l.role) == ownReceives
	for i := l.head; i != l.posted; i++ {
		e := l.at(i)
		reset = reset || e.kind() == kindAtomic || l.owner.send.sends.of(e).op == verbs.OpRDMARead
	}
	if l.errState(); reset {
		l.resetState()
	}
}

// pooledLane returns the lane that uses the pool, or nil.
func (r *receiver) pooledLane() *lane {
	if l := r.setup.messageLane; r.setup.pool != nil && l != nil && l.queue != nil {
		return l
	}
	return nil
}

// leavePool resets the message lane of a failed VirtualQP once its completions were polled. An SRQ keeps its receives
// while one of its QPs is not in RESET.
func (r *receiver) leavePool() {
	if l := r.pooledLane(); l != nil && l.head == l.posted && r.setup.cq.passedAll(&r.failover.failBarriers) {
		l.resetState()
	}
}

// close closes all SRQs. Their receives end without a completion.
func (p *dataPool) close() (err error) {
	if p == nil {
		return nil
	}
	for _, srq := range p.retired {
		err = errors.Join(err, srq.Close())
	}
	*p = dataPool{cq: p.cq}
	return err
}
