package reliable

import (
	"slices"

	"ibverbx/verbs"
)

// cq is a completion queue: completions of wrapped QPs in a ring of its own, those of other
// QPs in the inner CQ.
type cq struct {
	ctx   *device
	inner verbs.CQ
	waker *verbs.Waker

	ring      []verbs.WC
	head, len int
	armed     bool
	solicited bool // armed for solicited and failed ones only
	overrun   bool
	users     int
	closed    bool
}

var _ verbs.CQ = (*cq)(nil)

// CreateCQ implements verbs.Context.
func (d *device) CreateCQ(cfg verbs.CQConfig) (verbs.CQ, error) {
	inner, err := d.inner.CreateCQ(cfg)
	if err != nil {
		return nil, err
	}
	c := &cq{ctx: d, inner: inner, waker: cfg.Waker, ring: make([]verbs.WC, inner.Depth())}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cqs = append(d.cqs, c)
	return c, nil
}

// Poll drives the transport and takes completions.
func (c *cq) Poll(dst []verbs.WC) (n int, err error) {
	c.ctx.mu.Lock()
	defer c.ctx.mu.Unlock()
	if c.closed || c.ctx.closed {
		return c.inner.Poll(dst)
	}
	c.ctx.polled = true
	if c.len < len(dst) {
		c.ctx.drive()
	}
	for n < len(dst) && c.len > 0 {
		dst[n] = c.ring[c.head]
		if c.head++; c.head == len(c.ring) {
			c.head = 0
		}
		c.len--
		n++
	}
	if n == len(dst) {
		return n, nil
	}
	k, err := c.inner.Poll(dst[n:])
	if n+k > 0 {
		return n + k, nil
	}
	if err == nil && c.overrun {
		err = verbs.ErrCQOverrun
	}
	return 0, err
}

// Arm implements verbs.CQ.
func (c *cq) Arm(solicitedOnly bool) error {
	if err := c.inner.Arm(solicitedOnly); err != nil {
		return err
	}
	c.ctx.mu.Lock()
	defer c.ctx.mu.Unlock()
	c.solicited = solicitedOnly && (c.solicited || !c.armed)
	c.armed = true
	c.ctx.keeper.kick()
	return nil
}

// Depth implements verbs.CQ.
func (c *cq) Depth() int { return c.inner.Depth() }

// Close implements verbs.CQ.
func (c *cq) Close() error {
	c.ctx.mu.Lock()
	defer c.ctx.mu.Unlock()
	if c.users > 0 && !c.closed && !c.ctx.closed {
		return c.ctx.opError("close CQ", 0, verbs.ErrBusy)
	}
	if err := c.inner.Close(); err != nil {
		return err
	}
	c.closed = true
	c.ctx.cqs = slices.DeleteFunc(c.ctx.cqs, func(o *cq) bool { return o == c })
	c.ctx.forget(func(ev verbs.Event) bool { return ev.CQ == verbs.CQ(c) })
	return nil
}

// push adds a completion. A CQ that is full overruns, and its QPs fail.
func (c *cq) push(wc *verbs.WC, solicited bool) {
	if c.overrun {
		return
	}
	if c.len == len(c.ring) {
		c.overrun = true
		c.ctx.raise(verbs.Event{Type: verbs.EventCQErr, CQ: c})
		for _, q := range c.ctx.qps {
			if q != nil && (q.sendCQ == c || q.recvCQ == c) {
				q.broken = true
				if q.link != nil {
					q.link.sick = true
				}
				c.ctx.raise(verbs.Event{Type: verbs.EventQPFatal, QP: q})
			}
		}
		return
	}
	i := c.head + c.len
	if i >= len(c.ring) {
		i -= len(c.ring)
	}
	c.ring[i] = *wc
	c.len++
	if c.armed && (!c.solicited || solicited || wc.Status != verbs.StatusSuccess) {
		c.armed, c.solicited = false, false
		c.waker.Wake()
	}
}

// discard takes the completions of a QP out.
func (c *cq) discard(qpn uint32) {
	kept := 0
	for k := range c.len {
		wc := c.ring[(c.head+k)%len(c.ring)]
		if wc.QPN != qpn {
			c.ring[(c.head+kept)%len(c.ring)] = wc
			kept++
		}
	}
	c.len = kept
}
