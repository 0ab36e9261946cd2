package softnic

import (
	"net/netip"
	"time"

	"ibverbx/internal/clock"
	"ibverbx/verbs"
)

// settleBudget limits the packets that one call delivers from a link that queues them, so that posts and polls hold
// the lock briefly. The next call or the helper delivers the rest.
const settleBudget = 4096

// readerGrace is the time for which timers wait for a reader whose packets may answer them.
const readerGrace = time.Millisecond

// core is the state shared by the NICs of a link, or owned by a NIC on a UDPLink: the lock, the clock, and the lists
// of QPs with pending work. It is a state machine without a goroutine: every call into a NIC locks, changes something
// and settles. In real time a helper settles when a timer is due.
type core struct {
	traits linkTraits
	mu     coreLock
	link   carrier
	clock  func() int64
	// helper is nil in virtual time.
	helper *helper
	// queue holds packets in flight. It is nil while the link delivers or writes them directly.
	queue *faults
	// udpNIC is the state of the core's NIC on a UDPLink, otherwise nil.
	udpNIC *udpNIC
	// notBefore is the earliest time at which checking the timers is useful.
	notBefore int64
	// caughtUp is set if the packets that may answer the due timers have just been read.
	caughtUp bool
	// at is the time at which the clock was last read.
	at int64

	// turns counts the posts in finishDirect.
	turns int

	lists  workLists
	timers timers

	// stagers hold the staging buffers for devices with registered memory, on links to other processes.
	stagers stagers
	// devices counts the stagers ever created.
	devices uint32

	// neighbors are the processes that share memory with the core's NIC.
	neighbors []*neighbor
	nics      map[verbs.GID]*NIC
	// count is the number of NICs ever attached.
	count uint32
	// nonce distinguishes the addresses and GUIDs of links, so that QPs of two links cannot be connected by mistake.
	// It is 0 on virtual time, where every run must repeat.
	nonce uint32
}

func (c *core) init(link carrier, t linkTraits, now func() int64) {
	c.link, c.traits = link, t
	c.nics, c.timers = make(map[verbs.GID]*NIC), newTimers()
	c.lists.init()
	c.mu.openAfter, c.mu.minOpenAfter = neverOpen, neverOpen
	if now != nil {
		c.clock = now
		return
	}
	if t.immediate {
		c.mu.openAfter, c.mu.minOpenAfter = openAfter, openAfter
	}
	c.clock = clock.Monotonic()
	c.helper = newHelper(c)
	c.nonce = newRand(0).Uint32()
}

// onCaller reports whether a post moves its data within the call. Virtual time passes only between calls, so there the
// core that moves the data does not matter.
func (c *core) onCaller() bool {
	return (c.traits.immediate || c.traits.shm != nil) && c.helper != nil
}

// Step runs all timers and deliveries due at the current time of the link's clock. It returns the time of
// the next one; pending is false if none is scheduled. A link in real time runs by itself and does not
// need it. Step is safe for concurrent use.
func (c *core) Step() (next int64, pending bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	next = c.advance()
	return next, next != never
}

// Next returns the time of the next timer or delivery on the link; pending is false if none is scheduled.
// It does not run it: advance virtual time to at, then call Step. It is safe for concurrent use.
func (c *core) Next() (at int64, pending bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at = c.next()
	return at, at != never
}

// advance settles at the present time and returns the time of the next event.
func (c *core) advance() int64 {
	c.at = c.clock()
	c.settle()
	return c.next()
}

// settle runs until no work is left at this time. Every call that changes something calls it last. The lock is held.
func (c *core) settle() {
	if c.queue != nil {
		c.at = c.clock()
	}
	for q := c.lists.later.pop(); q != nil; q = c.lists.later.pop() {
		c.lists.tx.push(q)
	}
	for _, d := range c.stagers {
		d.collect()
	}
	c.work()
	if !c.lists.watch.empty() || c.timers.Len() > 0 || c.queue != nil || !c.lists.later.empty() {
		c.settleTimed()
	}
	for _, d := range c.stagers {
		d.submitOpen(false)
	}
	if w := c.udpNIC; w != nil && (w.corks == 0 || w.zeroCopy) { // else Uncork flushes
		w.flush()
	}
	if c.traits.shm != nil {
		c.traits.shm.ringBell()
	}
}

// work runs the QPs with something to acknowledge or to send.
func (c *core) work() {
	for {
		// On a ShmLink the program's response precedes the acknowledgement, which is less urgent.
		if c.traits.shm == nil || c.lists.tx.empty() {
			if q := c.lists.acks.pop(); q != nil {
				q.flushAck()
				continue
			}
		}
		if q := c.lists.tx.pop(); q != nil {
			q.transmit()
			continue
		}
		if q := c.lists.broken.pop(); q != nil {
			q.fatal()
			continue
		}
		if q := c.lists.failing.pop(); q != nil {
			q.enterError()
			continue
		}
		return
	}
}

// settleTimed is the part of settle that needs the clock: it delivers packets that are due and fires timers.
func (c *core) settleTimed() {
	if !c.unwatch() && c.timers.Len() == 0 && c.queue == nil && c.lists.later.empty() {
		return
	}
	c.at = c.clock()
	for budget := settleBudget; ; {
		c.arm()
		n := 0
		if c.queue != nil {
			n = c.queue.deliver(c.at, budget)
			budget -= n
		}
		if c.distant() && !c.caughtUp && c.due() && !c.pump() {
			break
		}
		if n == 0 && !c.expire() {
			break
		}
		c.work()
		if budget <= 0 {
			break
		}
	}
	c.arm()
	if c.helper != nil {
		c.helper.wakeBy(c.next())
	}
}

// pump reads packets that may answer the due timers. It returns false if another goroutine is reading. The timers then
// wait: that goroutine settles if it finds packets, and otherwise the helper waits until it is done.
func (c *core) pump() bool {
	if l := c.traits.shm; l != nil {
		l.ring.serveBatch()
		c.work()
		return true
	}
	read, busy := c.udpNIC.nic.pump()
	if read {
		c.work()
	}
	if busy {
		c.notBefore = c.at + int64(readerGrace)
	}
	return !busy
}

// unwatch drops the watched QPs that need no timer and reports whether others remain.
func (c *core) unwatch() bool {
	l := &c.lists.watch
	keep := l.qps[:0]
	for _, q := range l.qps[l.head:] {
		if q.needsTimer() {
			keep = append(keep, q)
		} else {
			q.lists &^= onWatch
		}
	}
	clear(l.qps[len(keep):])
	l.qps, l.head = keep, 0
	return len(keep) > 0
}

// arm starts the timers of the watched QPs.
func (c *core) arm() {
	for q := c.lists.watch.pop(); q != nil; q = c.lists.watch.pop() {
		if q.needsTimer() {
			q.armTimer(c.at)
		}
	}
}

// due reports whether a timer is due at time at.
func (c *core) due() bool { return c.timers.Len() > 0 && c.timers.Next() <= c.at }

// late reports whether a timer is due now. The caller is inside a gate.
func (c *core) late() bool { return c.timers.Len() > 0 && c.timers.Next() <= c.clock() }

// expire fires all due timers and reports whether any fired.
func (c *core) expire() bool {
	fired := false
	for c.due() {
		c.timers.Pop().timeout(c.at)
		fired = true
	}
	return fired
}

// next returns the time of the next event, never if none is pending.
func (c *core) next() int64 {
	if !c.lists.later.empty() && c.turns == 0 {
		return c.at
	}
	at := c.timers.Next()
	if c.queue != nil {
		at = min(at, c.queue.flights.Next())
	}
	return max(at, c.notBefore)
}

// attach adds n under an address that no other NIC of the core has.
func (c *core) attach(n *NIC) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count++
	n.core, n.ordinal = c, c.count
	addr := n.cfg.Addr.Unmap()
	switch {
	case c.traits.shm != nil && !addr.IsValid():
		addr = c.traits.shm.ring.from.dgid.Addr()
	case c.traits.shm != nil:
		return verbs.Invalidf("Config.Addr is %s: a ShmLink chooses the address", addr)
	case !addr.IsValid():
		addr = c.freeAddr()
	}
	if addr.IsUnspecified() || addr.IsMulticast() || addr.Zone() != "" || addr == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return verbs.Invalidf("Config.Addr %s cannot be the address of a port", addr)
	}
	n.setAddr(verbs.GIDFromAddr(addr), c.nonce)
	for _, e := range n.gids {
		if other := c.nics[e.GID]; other != nil {
			return verbs.Invalidf("Config.Addr %s belongs to %s on this link", e.GID.Addr(), other.name)
		}
	}
	if c.udpNIC != nil {
		if err := c.udpNIC.plug(n); err != nil {
			return err
		}
	}
	if c.traits.shm != nil {
		if err := c.traits.shm.plug(n); err != nil {
			return err
		}
	}
	for _, e := range n.gids {
		c.nics[e.GID] = n
	}
	return nil
}

// distant reports whether the link connects processes.
func (c *core) distant() bool { return c.udpNIC != nil || c.traits.shm != nil }

// freeAddr returns an address of 198.18.0.0/15 that no NIC on the link has. The range is reserved for benchmarks of
// network devices (RFC 2544).
func (c *core) freeAddr() netip.Addr {
	for k := c.nonce + c.count; ; k++ {
		k := k % (1 << 17)
		addr := netip.AddrFrom4([4]byte{198, 18 + byte(k>>16), byte(k >> 8), byte(k)})
		if k != 0 && c.nics[verbs.GIDFromAddr(addr)] == nil {
			return addr
		}
	}
}

// detach removes n. It returns the helper if n was the last NIC, otherwise nil. The caller stops the helper without
// the lock.
func (c *core) detach(n *NIC) *helper {
	for _, e := range n.gids {
		delete(c.nics, e.GID)
	}
	if c.queue != nil {
		c.queue.forget(n)
	}
	if c.udpNIC != nil {
		c.udpNIC.link.detach(n)
	}
	if len(c.nics) > 0 || c.helper == nil {
		return nil
	}
	h := c.helper
	c.helper = newHelper(c)
	return h
}

// find returns the NIC at the far end of p, or nil.
func (c *core) find(p *path) *NIC {
	if p.peer == nil || p.peer.closed {
		p.peer = c.nics[p.dgid]
	}
	return p.peer
}
