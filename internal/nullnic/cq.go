package nullnic

import "ibverbx/verbs"

// CQ is a ring of completions.
type CQ struct {
	ring       []verbs.WC
	head, tail uint32
	waker      *verbs.Waker
	armed      bool
	err        error
}

var _ verbs.CQ = (*CQ)(nil)

// push adds a completion. A test that lets a CQ overrun has made a mistake.
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

// Push adds a completion that no QP of the NIC produced.
func (c *CQ) Push(wc verbs.WC) { *c.push() = wc }

// FailNext makes the next Poll return err after what is in the queue.
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
	c.head += uint32(n)
	return n, nil
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
