package softnic

import (
	"net/netip"
	"sync"
	"time"

	"ibverbx/verbs"
)

// settleBudget bounds the packets that one call delivers from a link that queues
// them, so that no post or poll holds the lock for long. The rest is done by the next
// call or by the helper.
const settleBudget = 4096

// readerGrace is how long timers wait for somebody who reads packets that may answer to
// them.
const readerGrace = time.Millisecond

// core is what the NICs of one link share: the lock, the clock, and the lists of what
// wants to run. It is a state machine without a goroutine: every call into a NIC locks,
// changes something and settles. In real time a helper settles when a timer is due.
type core struct {
	mu    sync.Mutex
	link  Link
	clock func() int64
	// helper is nil on virtual time.
	helper *helper
	// timed says that the link queues packets, so that every call needs the time.
	timed bool
	// batched says that the link collects packets until it is flushed.
	batched bool
	// probeAfter is how long an answer is waited for before a probe is sent, 0 for never.
	probeAfter time.Duration
	// notBefore is a time before which there is no use in looking at the timers.
	notBefore int64
	// caughtUp says that what may answer to the timers that are due was just read.
	caughtUp bool
	// at is the time as of the last look at the clock.
	at int64

	acks    workList // QPs that owe an acknowledgement
	tx      workList // QPs that may have something to send
	later   workList // QPs that have sent enough for one call
	watch   workList // QPs with unacknowledged packets and perhaps no timer
	broken  workList // QPs whose CQ overran
	failing workList // UC and UD QPs that a receive has ended
	timers  timerHeap

	nics  map[verbs.GID]*NIC
	count uint32 // NICs ever attached
	// nonce tells the addresses and GUIDs of one link from those of another, so that
	// QPs of two links cannot be connected by mistake. It is 0 on virtual time, where
	// everything must repeat.
	nonce uint32
}

func (c *core) init(link Link, now func() int64) {
	c.link = link
	c.nics = make(map[verbs.GID]*NIC)
	if now != nil {
		c.clock = now
		return
	}
	c.clock = monotonic()
	c.helper = newHelper(c)
	c.nonce = newRand(0).Uint32()
}

// workList is a queue of QPs. It keeps its backing array, so that it stops allocating
// once it has been as long as it gets.
type workList struct {
	qps  []*qp
	head int
}

func (l *workList) push(q *qp) { l.qps = append(l.qps, q) }

func (l *workList) empty() bool { return l.head == len(l.qps) }

// pop returns the oldest QP, nil if there is none.
func (l *workList) pop() *qp {
	if l.head == len(l.qps) {
		return nil
	}
	q := l.qps[l.head]
	l.qps[l.head] = nil // or it would keep a closed QP alive
	l.head++
	if l.head == len(l.qps) {
		l.qps, l.head = l.qps[:0], 0
	}
	return q
}

// schedule makes q transmit what it can.
func (c *core) schedule(q *qp) {
	if !q.inTx {
		q.inTx = true
		c.tx.push(q)
	}
}

// putOff makes q transmit in the next call, or by the helper: others have a turn before that.
func (c *core) putOff(q *qp) {
	if !q.inLater {
		q.inLater = true
		c.later.push(q)
	}
}

// resume schedules the QPs that were put off.
func (c *core) resume() {
	for q := c.later.pop(); q != nil; q = c.later.pop() {
		q.inLater = false
		c.schedule(q)
	}
}

// settle runs until nothing can run at this time. The lock is held.
func (c *core) settle() {
	if c.timed {
		c.at = c.clock()
	}
	c.resume()
	c.work()
	if !c.watch.empty() || len(c.timers) > 0 || c.timed || !c.later.empty() {
		c.settleTimed()
	}
	if c.batched {
		c.link.flush()
	}
}

// work runs the QPs that have something to acknowledge or to send.
func (c *core) work() {
	for {
		if q := c.acks.pop(); q != nil {
			q.ackListed = false
			q.flushAck()
			continue
		}
		if q := c.tx.pop(); q != nil {
			q.inTx = false
			q.transmit()
			continue
		}
		if q := c.broken.pop(); q != nil {
			q.inBroken = false
			q.fatal()
			continue
		}
		if q := c.failing.pop(); q != nil {
			q.enterError()
			continue
		}
		return
	}
}

// settleTimed does the part of settle that looks at the clock: delivers packets that
// are due and fires timers.
func (c *core) settleTimed() {
	if !c.unwatch() && len(c.timers) == 0 && !c.timed && c.later.empty() {
		return
	}
	c.at = c.clock()
	for budget := settleBudget; ; {
		c.arm()
		n := 0
		if c.timed {
			n = c.link.deliver(c.at, budget)
			budget -= n
		}
		if c.batched && !c.caughtUp && c.due() {
			// What answers to the timers that are due may be there already.
			read, busy := c.link.pump()
			if read {
				c.work()
			}
			if busy {
				// Whoever reads settles, too, if there is something. If not, the
				// helper waits for them, however busy they are.
				c.notBefore = c.at + int64(readerGrace)
				break
			}
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

// unwatch drops the watched QPs that need no timer and reports whether any is left.
func (c *core) unwatch() bool {
	l := &c.watch
	keep := l.qps[:0]
	for _, q := range l.qps[l.head:] {
		if q.needsTimer() {
			keep = append(keep, q)
		} else {
			q.watched = false
		}
	}
	clear(l.qps[len(keep):])
	l.qps, l.head = keep, 0
	return len(keep) > 0
}

// arm starts the timers of the watched QPs.
func (c *core) arm() {
	for q := c.watch.pop(); q != nil; q = c.watch.pop() {
		q.watched = false
		if q.needsTimer() {
			q.armTimer(c.at)
		}
	}
}

// due reports whether a timer is due.
func (c *core) due() bool { return len(c.timers) > 0 && c.timers[0].timerAt <= c.at }

// expire fires the timers that are due and reports whether there were any.
func (c *core) expire() bool {
	fired := false
	for c.due() {
		q := c.timers[0]
		c.timers.drop(q)
		q.timeout(c.at)
		fired = true
	}
	return fired
}

// next is the time at which something is due, never if nothing is.
func (c *core) next() int64 {
	if !c.later.empty() {
		return c.at
	}
	return max(min(c.timers.next(), c.link.next()), c.notBefore)
}

// step is Step of the links.
func (c *core) step() (next int64, pending bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.clock()
	c.resume()
	c.work()
	c.settleTimed()
	c.link.flush()
	next = c.next()
	return next, next != never
}

// attach plugs n in, under an address that no other NIC of the link has.
func (c *core) attach(n *NIC, addr netip.Addr) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count++
	n.ordinal = c.count
	if !addr.IsValid() {
		var err error
		if addr, err = c.link.address(); err != nil {
			return err
		}
	}
	addr = addr.Unmap()
	if addr.IsUnspecified() || addr.IsMulticast() || addr.Zone() != "" || addr == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return verbs.Invalidf("address %s cannot be that of a port", addr)
	}
	n.setAddr(verbs.GIDFromAddr(addr), c.nonce)
	for _, e := range n.gids {
		if other := c.nics[e.GID]; other != nil {
			return verbs.Invalidf("address %s is taken by %s on this link", e.GID.Addr(), other.name)
		}
	}
	if err := c.link.plug(n); err != nil {
		return err
	}
	for _, e := range n.gids {
		c.nics[e.GID] = n
	}
	return nil
}

// freeAddr returns an address of 198.18.0.0/15, which is set aside for benchmarks of
// network devices (RFC 2544), that no NIC of the link has.
func (c *core) freeAddr() netip.Addr {
	for k := c.nonce + c.count; ; k++ {
		k := k % (1 << 17)
		addr := netip.AddrFrom4([4]byte{198, 18 + byte(k>>16), byte(k >> 8), byte(k)})
		if k != 0 && c.nics[verbs.GIDFromAddr(addr)] == nil {
			return addr
		}
	}
}

// detach unplugs n. It returns a function that ends the helper if n was the last NIC;
// it must be called without the lock.
func (c *core) detach(n *NIC) (end func()) {
	for _, e := range n.gids {
		delete(c.nics, e.GID)
	}
	c.link.forget(n)
	if len(c.nics) > 0 || c.helper == nil {
		return func() {}
	}
	h := c.helper
	c.helper = newHelper(c)
	return h.end
}

// find returns the NIC at the far end of p, nil if there is none.
func (c *core) find(p *path) *NIC {
	if p.peer == nil || p.peer.closed {
		p.peer = c.nics[p.dgid]
	}
	return p.peer
}
