package softnic

import (
	"net/netip"
	"time"

	"ibverbx/internal/clock"
	"ibverbx/verbs"
)

// settleBudget bounds the packets that one call delivers from a link that queues them, so that
// no post or poll holds the lock for long. The next call or the helper delivers the rest.
const settleBudget = 4096

// readerGrace is how long timers wait for a reader whose packets may answer them.
const readerGrace = time.Millisecond

// core is the state that the NICs of one link share, or that a NIC on a UDPLink has: the lock, the clock,
// and the lists of QPs that have something to do. It is a state machine without a goroutine: every call into a NIC
// locks, changes something and settles. In real time a helper settles when a timer is due.
type core struct {
	traits linkTraits
	mu     coreLock
	link   carrier
	clock  func() int64
	// helper is nil on virtual time.
	helper *helper
	// queue holds packets under way. It is nil while the link delivers or writes them at once.
	queue *faults
	// wire is the core's own if it leads out of the process, otherwise nil.
	udpNIC *udpNIC
	// notBefore is a time before which checking the timers is useless.
	notBefore int64
	// caughtUp says that the packets that may answer the due timers have just been read.
	caughtUp bool
	// at is the time of the last look at the clock.
	at int64

	// turns counts the posts that settle until their QP is no longer on lists.later.
	turns int

	lists  workLists
	timers timers

	// stagers hold the staging buffers for devices with registered memory, on links to other processes.
	stagers stagers
	// devices counts the stagers ever created.
	devices uint32

	// neighbors are the processes that may touch memory of the core's NIC, and whose memory it may touch.
	neighbors []*neighbor
	nics      map[verbs.GID]*NIC
	// count is the number of NICs ever attached.
	count uint32
	// nonce makes the addresses and GUIDs of links differ, so that QPs of two links cannot be
	// connected by mistake. It is 0 on virtual time, where every run must repeat.
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

// onCaller reports whether a post moves its data within the call. Virtual time passes only between
// calls, so there it does not matter which core moves the data.
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

// advance settles at the present time and returns when something is due next.
func (c *core) advance() int64 {
	c.at = c.clock()
	c.settle()
	return c.next()
}

// settle runs until nothing can run at this time. Every call that changes something ends with
// it. The lock is held.
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
	if c.udpNIC != nil {
		c.udpNIC.flush()
	}
	if c.traits.shm != nil {
		c.traits.shm.ringBell()
	}
}

// work runs the QPs that have something to acknowledge or to send.
func (c *core) work() {
	for {
		// On a ShmLink an answer of the program goes before the acknowledgement, which the peer needs less.
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

// settleTimed is the part of settle that needs the clock: it delivers packets that are due and
// fires timers.
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

// pump reads packets that have arrived: they may answer the timers that are due. It reports
// false if another goroutine is reading. Then the timers wait: that goroutine settles if it
// finds packets, and if not, the helper waits until it is done.
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

// unwatch drops the watched QPs that need no timer and reports whether any is left.
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

// due reports whether a timer is due.
func (c *core) due() bool { return c.timers.Len() > 0 && c.timers.Next() <= c.at }

// late reports whether a timer is due by now. The caller is inside a gate.
func (c *core) late() bool { return c.timers.Len() > 0 && c.timers.Next() <= c.clock() }

// expire fires the timers that are due and reports whether there were any.
func (c *core) expire() bool {
	fired := false
	for c.due() {
		c.timers.Pop().timeout(c.at)
		fired = true
	}
	return fired
}

// next returns the time at which something is due, never if nothing is.
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

// attach plugs n in under an address that no other NIC of the core has.
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

// distant reports whether the link leads to other processes.
func (c *core) distant() bool { return c.udpNIC != nil || c.traits.shm != nil }

// freeAddr returns an address of 198.18.0.0/15 that no NIC of the link has. The range is
// reserved for benchmarks of network devices (RFC 2544).
func (c *core) freeAddr() netip.Addr {
	for k := c.nonce + c.count; ; k++ {
		k := k % (1 << 17)
		addr := netip.AddrFrom4([4]byte{198, 18 + byte(k>>16), byte(k >> 8), byte(k)})
		if k != 0 && c.nics[verbs.GIDFromAddr(addr)] == nil {
			return addr
		}
	}
}

// detach unplugs n. It returns the helper if n was the last NIC, otherwise nil. The caller ends
// the helper without the lock.
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

// find returns the NIC at the far end of p, nil if there is none.
func (c *core) find(p *path) *NIC {
	if p.peer == nil || p.peer.closed {
		p.peer = c.nics[p.dgid]
	}
	return p.peer
}
