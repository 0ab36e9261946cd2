package nullnic

import "ibverbx/verbs"

// CQ is a ring of completions. It is not a ring.Ring, because it is the baseline of engine
// benchmarks: succeed and Poll check for space and load the cursors once per chain.
type CQ struct {
	ring       []verbs.WC
	head, tail uint32
	waker      *verbs.Waker
	armed      bool
	// err is returned by the next Poll that finds the queue empty.
	err error
	// slots holds, for each completion in the ring, the send queue slots that polling it frees.
	// It is nil unless a held QP uses the CQ.
	slots []freed
}

// freed is a number of send queue slots of a held QP.
type freed struct {
	qp *QP
	n  int
}

var _ verbs.CQ = (*CQ)(nil)

// push adds a completion. An overrun is a bug in the test and panics.
func (c *CQ) push() *verbs.WC {
	if int(c.tail-c.head) == len(c.ring) {
		panic("ibverbx/internal/nullnic: completion queue overrun")
	}
	wc := &c.ring[int(c.tail)&(len(c.ring)-1)]
	c.tail++
	if c.armed {
		c.armed = false
		c.waker.Wake()
	}
	return wc
}

// succeed adds a completion for each signaled request of a chain. It is the hot path of
// benchmarks.
func (c *CQ) succeed(qpn uint32, wrs []verbs.SendWR) {
	ring, tail := c.ring, c.tail
	if int(tail-c.head)+len(wrs) > len(ring) {
		panic("ibverbx/internal/nullnic: completion queue overrun")
	}
	for i := range wrs {
		wr := &wrs[i]
		if wr.Flags&verbs.SendSignaled == 0 {
			continue
		}
		wc := &ring[int(tail)&(len(ring)-1)]
		wc.WRID, wc.Status, wc.QPN, wc.Opcode, wc.ByteLen, wc.Flags = wr.WRID, verbs.StatusSuccess, qpn, wr.Opcode.WC(), 0, 0
		tail++
	}
	came := tail != c.tail
	c.tail = tail
	if came && c.armed {
		c.armed = false
		c.waker.Wake()
	}
}

// freeing makes the next pushed completion free n slots of q's send queue.
func (c *CQ) freeing(q *QP, n int) {
	if c.slots == nil {
		c.slots = make([]freed, len(c.ring))
	}
	c.slots[int(c.tail)&(len(c.ring)-1)] = freed{q, n}
}

// Push adds a completion from outside the NIC's QPs.
func (c *CQ) Push(wc verbs.WC) { *c.push() = wc }

// Len is the number of unpolled completions.
func (c *CQ) Len() int { return int(c.tail - c.head) }

// FailNext makes Poll return err once, after the completions in the queue.
func (c *CQ) FailNext(err error) { c.err = err }

// Poll implements verbs.CQ.
func (c *CQ) Poll(dst []verbs.WC) (int, error) {
	n := min(int(c.tail-c.head), len(dst))
	ring := c.ring
	if n == 0 || len(ring) == 0 {
		err := c.err
		c.err = nil
		return 0, err
	}
	for i := range dst[:n] {
		dst[i] = ring[int(c.head+uint32(i))&(len(ring)-1)]
	}
	if c.slots != nil {
		c.giveBack(n)
	}
	c.head += uint32(n)
	return n, nil
}

// giveBack releases the send queue slots of the oldest n completions, which are being polled.
//
//go:noinline
func (c *CQ) giveBack(n int) {
	for i := range n {
		f := &c.slots[int(c.head+uint32(i))&(len(c.slots)-1)]
		if f.qp != nil {
			f.qp.occupied -= f.n
			*f = freed{}
		}
	}
}

// Arm implements verbs.CQ.
func (c *CQ) Arm(bool) error {
	if c.waker == nil {
		return verbs.ErrNotSupported
	}
	c.armed = true
	return nil
}

// Depth implements verbs.CQ.
func (c *CQ) Depth() int { return len(c.ring) }

// Close implements verbs.CQ.
func (c *CQ) Close() error { return nil }
