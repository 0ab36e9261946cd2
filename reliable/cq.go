package reliable

import (
	"ibverbx/internal/ring"
	"ibverbx/verbs"
)

// cq is a completion queue. It has a ring for the completions of wrapped QPs. Those of other QPs are
// in the inner CQ.
type cq struct {
	ctx    *pathContext
	engine *engine      // adds completions
	inner  verbs.CQ     // takes the completions of QPs that are not wrapped
	waker  *verbs.Waker // woken when the armed CQ gets a completion; it may be nil

	ring      ring.Ring[completion] // holds at most inner.Depth() completions
	armed     bool                  // reports that the next completion wakes waker
	solicited bool                  // limits armed to solicited and failed completions
	overrun   bool                  // reports that a completion was lost because the ring was full
	users     int                   // counts the wrapped QPs that use the CQ, twice if for both directions
	closed    bool                  // set by Close
}

// completion is a completion with the places that are free once it is polled. A request, or a receive,
// keeps its place in the queue of its QP until its completion, or that of a later one, was polled. So
// a CQ that has room for the queues of all its QPs never overruns.
type completion struct {
	wc     verbs.WC
	places *int // the places that are taken in the queue
	n      int  // how many of them it frees
}

var _ verbs.CQ = (*cq)(nil)

func (ctx *pathContext) CreateCQ(cfg verbs.CQConfig) (verbs.CQ, error) {
	if cfg.Timestamp {
		return nil, ctx.opError("create CQ", 0, verbs.ErrNotSupported)
	}
	inner, err := ctx.inner.CreateCQ(cfg)
	if err != nil {
		return nil, err
	}
	c := &cq{ctx: ctx, engine: ctx.engine, inner: inner, waker: cfg.Waker, ring: ring.New[completion](inner.Depth())}
	ctx.events.open(c)
	return c, nil
}

// Poll drives the transport and takes completions.
func (c *cq) Poll(dst []verbs.WC) (n int, err error) {
	c.engine.mu.Lock()
	defer c.engine.mu.Unlock()
	if c.closed || c.engine.closed {
		return c.inner.Poll(dst)
	}
	c.engine.polled = true
	if c.ring.Len() < len(dst) {
		c.engine.drive()
	}
	for n < len(dst) && c.ring.Len() > 0 {
		done := c.ring.Front()
		dst[n] = done.wc
		*done.places -= done.n
		c.ring.Drop(1)
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

func (c *cq) Arm(solicitedOnly bool) error {
	if err := c.inner.Arm(solicitedOnly); err != nil {
		return err
	}
	c.engine.mu.Lock()
	defer c.engine.mu.Unlock()
	c.solicited = solicitedOnly && (c.solicited || !c.armed)
	c.armed = true
	c.engine.keeper.kick()
	return nil
}

func (c *cq) Depth() int { return c.inner.Depth() }

func (c *cq) Close() error {
	c.engine.mu.Lock()
	defer c.engine.mu.Unlock()
	if c.users > 0 && !c.closed && !c.engine.closed {
		return c.ctx.opError("close CQ", 0, verbs.ErrBusy)
	}
	if err := c.inner.Close(); err != nil {
		return err
	}
	c.closed = true
	c.ctx.events.close(c)
	return nil
}

// push adds a completion that frees n places of a queue when it is polled. A full CQ overruns, and its
// QPs fail.
func (c *cq) push(wc *verbs.WC, places *int, n int, solicited bool) {
	if c.overrun {
		*places -= n
		return
	}
	if c.ring.Len() == c.Depth() {
		c.overrun, c.engine.overran = true, true
		*places -= n
		c.engine.keeper.kick()
		c.ctx.events.raise(verbs.Event{Type: verbs.EventCQErr, CQ: c})
		for _, q := range c.engine.qps {
			if q != nil && (q.sendCQ == c || q.recvCQ == c) {
				q.broken = true
				c.ctx.events.raise(verbs.Event{Type: verbs.EventQPFatal, QP: q})
			}
		}
		return
	}
	*c.ring.Extend() = completion{*wc, places, n}
	if c.armed && (!c.solicited || solicited || wc.Status != verbs.StatusSuccess) {
		c.armed, c.solicited = false, false
		c.waker.Wake()
	}
}

// discard removes the completions of a QP, whose queues are gone.
func (c *cq) discard(qpn uint32) {
	for range c.ring.Len() {
		if done := c.ring.Pop(); done.wc.QPN != qpn {
			c.ring.Push(done)
		}
	}
}
