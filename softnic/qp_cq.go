package softnic

import (
	"runtime"
	"sync/atomic"

	"ibverbx/internal/ring"
	"ibverbx/verbs"
)

// cq is a completion queue: a ring of completions, each with the queue slots that polling it releases.
// A work request is outstanding until its completion, or a later one, has been polled. The ring is
// hand-written as two slices, so that a poll copies only completions.
type cq struct {
	gate
	ctx     *hostContext
	core    *core
	wcs     []verbs.WC
	slots   []slotRefund
	head    uint32
	tail    uint32
	armed   arming
	waker   wakeTarget
	overrun bool
	closed  bool
	// timestamps is set if completions carry a timestamp.
	timestamps bool
	// users counts the QPs on the queue.
	users int
	// lost receives completions that overrun the queue.
	lost verbs.WC
	_    [88]byte // keeps queues of different goroutines on separate cache lines
}

// slotRefund is the number of slots of a queue released by a completion.
type slotRefund struct {
	used *slotCount
	n    uint32
}

// slotCount counts the occupied slots of a queue. Posts allocate slots inside the pair's gate and polls
// release them inside the CQ's gate, so the two sides synchronize only when a queue seems full.
type slotCount struct {
	// taken counts all slots ever allocated, seen the releases known to the posting side. The lock of
	// the queue guards both.
	taken, seen uint32
	// cq is the CQ whose polls release slots. It is nil for an SRQ, which completes in several CQs.
	cq *cq
	_  [48]byte // polls write to a separate cache line
	// freed counts slots released by cq, which guards it.
	freed uint32
	// shared counts slots released by any CQ, if cq is nil.
	shared atomic.Uint32
	_      [56]byte
}

// room returns the number of free slots out of limit. The result is exact if less than want, otherwise
// a lower bound.
func (s *slotCount) room(limit uint32, want int) int {
	free := int(limit - (s.taken - s.seen))
	if want <= free {
		return free
	}
	if s.cq == nil {
		s.seen = s.shared.Load()
	} else {
		s.cq.Lock()
		s.seen = s.freed
		s.cq.Unlock()
	}
	return int(limit - (s.taken - s.seen))
}

// free releases n slots.
func (s *slotCount) free(n uint32) {
	if s.cq == nil {
		s.shared.Add(n)
	} else {
		s.freed += n
	}
}

// clear releases all slots. The caller holds the core's lock.
func (s *slotCount) clear() { s.freed, s.seen = s.taken, s.taken }

// arming selects the completions that wake a CQ.
type arming uint8

const (
	disarmed arming = iota
	armedSolicited
	armedAny
)

var _ verbs.CQ = (*cq)(nil)

func (x *hostContext) createCQ(cfg verbs.CQConfig) (verbs.CQ, error) {
	switch {
	case cfg.Depth <= 0 || cfg.Depth > maxCQE:
		return nil, verbs.Invalidf("CQConfig.Depth is %d: want 1 to %d", cfg.Depth, maxCQE)
	case x.cqs.len() >= maxCQ:
		return nil, verbs.ErrLimit
	}
	size := ring.CeilPow2(cfg.Depth)
	c := &cq{
		ctx: x, core: x.core, wcs: make([]verbs.WC, size), slots: make([]slotRefund, size),
		waker: wakeTarget{cfg.Waker}, timestamps: cfg.Timestamp,
	}
	x.cqs.add(c)
	return c, nil
}

func (c *cq) Depth() int {
	mu := c.guard(&c.core.mu)
	defer mu.Unlock()
	return len(c.wcs)
}

// Resize changes the capacity of the queue (ibv_resize_cq(3)). It returns ErrInvalid if more
// completions are waiting. It is not part of verbs.CQ; callers use a type assertion.
func (c *cq) Resize(depth int) error {
	c.core.mu.Lock() // with all gates shut
	defer c.core.mu.Unlock()
	err := c.ctx.usable()
	switch waiting := int(c.tail - c.head); {
	case c.closed:
		err = verbs.ErrClosed
	case err != nil:
	case depth <= 0 || depth > maxCQE:
		err = verbs.Invalidf("depth %d: want 1 to %d", depth, maxCQE)
	case depth < waiting:
		err = verbs.Invalidf("depth %d: %d completions are waiting", depth, waiting)
	default:
		c.resize(ring.CeilPow2(depth))
	}
	return verbs.NewOpError("resize CQ", c.ctx.nic.name, 0, err)
}

// resize replaces the ring by one of size slots. The caller holds the core's lock.
func (c *cq) resize(size int) {
	wcs, credits := make([]verbs.WC, size), make([]slotRefund, size)
	for i := c.head; i != c.tail; i++ {
		from, to := int(i)&(len(c.wcs)-1), int(i)&(size-1)
		wcs[to], credits[to] = c.wcs[from], c.slots[from]
	}
	c.wcs, c.slots = wcs, credits
}

// full reports whether the next completion would overrun the queue.
func (c *cq) full() bool { return c.tail-c.head == uint32(len(c.wcs)) }

// push returns the slot for a new completion, which releases n slots of used when polled. The caller
// must fill the slot immediately.
func (c *cq) push(used *slotCount, n uint32, solicited bool) *verbs.WC {
	wcs, credits := c.wcs, c.slots
	if c.full() || len(wcs) == 0 || len(credits) != len(wcs) {
		c.overflow()
		used.free(n) // it will never be polled
		return &c.lost
	}
	i := int(c.tail) & (len(wcs) - 1)
	credits[i] = slotRefund{used, n}
	c.tail++
	if c.timestamps {
		wcs[i].Timestamp = c.core.ticks()
	}
	if c.armed != disarmed && (solicited || c.armed == armedAny) {
		c.armed = disarmed
		c.waker.wake()
	}
	return &wcs[i]
}

// overflow marks the queue as overrun. Its QPs cannot report completions any longer and fail (IBTA 1.4
// section 11.6.3.1). The work list fails them, because push may be running inside one of them.
func (c *cq) overflow() {
	if !c.overrun {
		c.overrun = true
		c.ctx.raise(verbs.Event{Type: verbs.EventCQErr, CQ: c})
		c.waker.wake()
	}
	for q := range c.ctx.nic.qps.all() {
		if (q.sendCQ == c || q.recvCQ == c) && q.state != verbs.StateErr {
			c.core.lists.broken.push(q)
		}
	}
}

func (c *cq) Poll(dst []verbs.WC) (int, error) {
	k := c.core
	mu := c.guard(&k.mu)
	n := c.take(dst)
	if l := k.traits.shm; l != nil && (n > 0 || l.idle(c.armed != disarmed)) {
		err := c.pollError(n, len(dst))
		mu.Unlock()
		return n, err
	}
	if mu == &c.Mutex {
		err, late := c.pollError(n, len(dst)), n == 0 && k.late()
		mu.Unlock()
		if !late {
			return n, err
		}
		k.mu.Lock()
	}
	if n == 0 && (k.queue != nil || (!k.lists.later.empty() && k.turns == 0) || (!k.distant() && k.timers.Len() > 0)) { // otherwise the helper runs timers
		k.mu.shut()
		k.settle()
		n = c.take(dst)
	}
	if n == 0 && len(k.stagers) > 0 && k.stagers.hasCopied() {
		k.settle()
		n = c.take(dst)
	}
	if n == 0 && k.traits.shm != nil && k.traits.shm.poll(c.armed != disarmed) {
		n = c.take(dst)
	}
	rings := k.udpNIC != nil && k.udpNIC.discovery.rings.Load() > 0
	if n == 0 && rings && k.udpNIC.readRings() {
		n = c.take(dst)
	}
	err := c.pollError(n, len(dst))
	ports, watched, copying := c.ctx.nic.polled, c.armed != disarmed, len(k.stagers) > 0 && k.stagers.copying()
	rest := rings && !watched && k.udpNIC.skipsSockets()
	k.mu.Unlock()
	if n > 0 || err != nil {
		return n, err
	}
	if copying {
		runtime.Gosched() // the copiers may need the processor
	}
	came := false
	for _, u := range ports {
		if rest {
			u.background.notePoll()
			continue
		}
		came = u.poll(watched) || came
	}
	if came {
		k.mu.Lock()
		n = c.take(dst)
		err = c.pollError(n, len(dst))
		k.mu.Unlock()
	}
	return n, err
}

// pollError returns the error of a Poll that returned n completions. An overrun is reported once the
// queue is empty.
func (c *cq) pollError(n, room int) error {
	if c.closed {
		return verbs.NewOpError("poll CQ", c.ctx.nic.name, 0, verbs.ErrClosed)
	}
	if c.overrun && n == 0 && room > 0 {
		return verbs.NewOpError("poll CQ", c.ctx.nic.name, 0, verbs.ErrCQOverrun)
	}
	return nil
}

func (c *cq) take(dst []verbs.WC) int {
	n := min(int(c.tail-c.head), len(dst))
	wcs, credits := c.wcs, c.slots
	if n == 0 || len(wcs) == 0 || len(credits) != len(wcs) {
		return 0
	}
	mask := len(wcs) - 1
	head := int(c.head)
	sum := slotRefund{used: credits[head&mask].used}
	for k := range dst[:n] {
		i := (head + k) & mask
		dst[k] = wcs[i]
		if cr := credits[i]; cr.used != sum.used {
			sum.used.free(sum.n)
			sum = cr
		} else {
			sum.n += cr.n
		}
	}
	sum.used.free(sum.n)
	c.head += uint32(n)
	return n
}

func (c *cq) Arm(solicitedOnly bool) error {
	mu := c.guard(&c.core.mu)
	defer mu.Unlock()
	switch {
	case c.closed:
		return verbs.NewOpError("arm CQ", c.ctx.nic.name, 0, verbs.ErrClosed)
	case c.waker.w == nil:
		return verbs.NewOpError("arm CQ", c.ctx.nic.name, 0, verbs.ErrNotSupported)
	case !solicitedOnly:
		c.armed = armedAny
	case c.armed == disarmed:
		c.armed = armedSolicited
	}
	for _, u := range c.ctx.nic.ports {
		u.background.wake()
	}
	if l := c.core.traits.shm; l != nil {
		l.wakeReader()
	}
	return nil
}

// Unreported serves all arrived packets, and reports whether the QP has completions to poll.
func (q *qp) Unreported() bool {
	if w := q.core.udpNIC; w != nil {
		w.readArrived()
	}
	q.core.mu.Lock()
	defer q.core.mu.Unlock()
	if q.nic.serveRings() {
		q.core.settle()
	}
	return q.sendCQ.holds(q) || q.recvCQ.holds(q)
}

// holds reports whether the queue has a completion of q.
func (c *cq) holds(q *qp) bool {
	for n := c.head; n != c.tail; n++ {
		if c.wcs[int(n)&(len(c.wcs)-1)].QPN == q.num {
			return true
		}
	}
	return false
}

// discard removes the completions of a QP that is reset or destroyed. It releases only slots of an SRQ,
// because the QP's own queues are reset.
func (c *cq) discard(q *qp) {
	mask := uint32(len(c.wcs) - 1)
	out := c.head
	for i := c.head; i != c.tail; i++ {
		from, to := i&mask, out&mask
		if c.wcs[from].QPN == q.num {
			if cr := c.slots[from]; q.srq != nil && cr.used == q.srq.used {
				cr.used.free(cr.n)
			}
			continue
		}
		c.wcs[to], c.slots[to] = c.wcs[from], c.slots[from]
		out++
	}
	c.tail = out
}

func (c *cq) Close() error {
	c.core.mu.Lock()
	defer c.core.mu.Unlock()
	if c.closed {
		return nil
	}
	if c.users > 0 {
		return verbs.NewOpError("close CQ", c.ctx.nic.name, 0, busyQPs(c.users))
	}
	c.destroy()
	return nil
}

func (c *cq) destroy() {
	c.closed = true
	c.head, c.tail = 0, 0
	c.ctx.cqs.remove(c)
	c.ctx.purge(func(e verbs.Event) bool { return e.CQ == verbs.CQ(c) })
	c.waker.wake()
}
