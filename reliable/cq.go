package reliable

import (
	"slices"
	"sync"
	"sync/atomic"

	"ibverbx/internal/ring"
	"ibverbx/verbs"
)

// cq is a completion queue. The engines add the completions of wrapped QPs to its ring.
// Those of other QPs are in the inner CQ.
type cq struct {
	ctx   *pathContext
	inner verbs.CQ     // receives the completions of QPs that are not wrapped
	waker *verbs.Waker // woken when the armed CQ gets a completion; it may be nil

	mu        sync.Mutex            // guards the fields below; taken under an engine's lock, never before it
	ring      ring.Ring[completion] // at most inner.Depth() completions
	armed     bool                  // set if the next completion wakes waker
	solicited bool                  // limits armed to solicited and failed completions
	overrun   bool                  // set once a completion was lost because the ring was full
	sources   []source              // the engines of its QPs; the slice is replaced, its elements never change
	closed    bool                  // set by Close
}

// completion is a completion with the queue slots that it frees when it is polled. A request or a receive
// keeps its slot in the queue of its QP until its completion, or that of a later one, is polled. So
// a CQ as deep as the queues of all its QPs never overruns.
type completion struct {
	wc       verbs.WC
	occupied *atomic.Int32 // the occupied slots of the queue
	n        int32         // the number of slots that it frees
}

// source is an engine that adds completions to a CQ.
type source struct {
	engine *engine
	users  int // counts the QPs of the engine that use the CQ, twice if for both directions
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
	c := &cq{ctx: ctx, inner: inner, waker: cfg.Waker, ring: ring.New[completion](inner.Depth())}
	ctx.events.addCQ(c)
	return c, nil
}

// Poll drives the engines of the CQ and returns completions.
func (c *cq) Poll(dst []verbs.WC) (n int, err error) {
	c.mu.Lock()
	closed, sources, waiting := c.closed || c.ctx.closed.Load(), c.sources, c.ring.Len()
	c.mu.Unlock()
	if closed {
		return c.inner.Poll(dst)
	}
	if waiting < len(dst) {
		for i := range sources {
			sources[i].engine.poll()
		}
	}
	n, overrun := c.pop(dst)
	if n == len(dst) {
		return n, nil
	}
	k, err := c.inner.Poll(dst[n:])
	if n+k > 0 {
		return n + k, nil
	}
	if err == nil && overrun {
		err = verbs.ErrCQOverrun
	}
	return 0, err
}

// pop moves completions from the ring to dst. It reports whether the ring has overrun.
func (c *cq) pop(dst []verbs.WC) (n int, overrun bool) {
	c.mu.Lock()
	for n < len(dst) && c.ring.Len() > 0 {
		done := c.ring.Front()
		dst[n] = done.wc
		done.occupied.Add(-done.n)
		c.ring.Drop(1)
		n++
	}
	overrun = c.overrun
	c.mu.Unlock()
	return n, overrun
}

func (c *cq) Arm(solicitedOnly bool) error {
	if err := c.inner.Arm(solicitedOnly); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.solicited = solicitedOnly && (c.solicited || !c.armed)
	c.armed = true
	for _, s := range c.sources {
		s.engine.background.wake()
	}
	return nil
}

func (c *cq) Depth() int { return c.inner.Depth() }

func (c *cq) Close() error {
	c.ctx.mu.Lock()
	defer c.ctx.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.sources) > 0 && !c.closed && !c.ctx.closed.Load() {
		return c.ctx.opError("close CQ", 0, verbs.ErrBusy)
	}
	if err := c.inner.Close(); err != nil {
		return err
	}
	c.closed = true
	c.ctx.events.closeCQ(c)
	return nil
}

// attach counts a QP of an engine. The engine is locked.
func (c *cq) attach(e *engine) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sources = slices.Clone(c.sources)
	if i := c.indexOf(e); i >= 0 {
		c.sources[i].users++
		return
	}
	c.sources, e.cqs = append(c.sources, source{e, 1}), append(e.cqs, c)
	if c.overrun {
		e.overran.Store(true) // since CreateQP has looked
	}
}

// detach undoes attach. The engine is locked.
func (c *cq) detach(e *engine) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sources = slices.Clone(c.sources)
	i := c.indexOf(e)
	if c.sources[i].users--; c.sources[i].users == 0 {
		c.sources = slices.Delete(c.sources, i, i+1)
		e.cqs = slices.DeleteFunc(e.cqs, func(o *cq) bool { return o == c })
	}
}

// indexOf returns the index of an engine in sources, or -1. The lock is held.
func (c *cq) indexOf(e *engine) int {
	return slices.IndexFunc(c.sources, func(s source) bool { return s.engine == e })
}

// isUsedBy reports whether a QP of an engine uses the CQ.
func (c *cq) isUsedBy(e *engine) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.indexOf(e) >= 0
}

// isArmed reports whether the next completion wakes the user.
func (c *cq) isArmed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.armed
}

// hasOverrun reports whether a completion was lost.
func (c *cq) hasOverrun() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.overrun
}

// usable reports whether a QP of a context can use the CQ. It may be nil.
func (c *cq) usable(ctx *pathContext) bool {
	if c == nil || c.ctx != ctx {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.closed
}

// push adds a completion that frees n slots of a queue when it is polled. A full CQ overruns, and its
// QPs fail.
func (c *cq) push(wc *verbs.WC, occupied *atomic.Int32, n int32, solicited bool) {
	c.mu.Lock()
	switch {
	case c.overrun:
		occupied.Add(-n)
	case c.ring.Len() == c.Depth():
		c.overrun = true
		occupied.Add(-n)
		c.ctx.events.raise(verbs.Event{Type: verbs.EventCQErr, CQ: c})
		for _, s := range c.sources {
			s.engine.overran.Store(true)
			s.engine.background.wake()
		}
	default:
		*c.ring.Extend() = completion{*wc, occupied, n}
		if c.armed && (!c.solicited || solicited || wc.Status != verbs.StatusSuccess) {
			c.armed, c.solicited = false, false
			c.waker.Wake()
		}
	}
	c.mu.Unlock()
}

// discard removes the completions of a QP.
func (c *cq) discard(qpn uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for range c.ring.Len() {
		done := c.ring.Pop()
		if done.wc.QPN != qpn {
			c.ring.Push(done)
			continue
		}
		done.occupied.Add(-done.n) // relevant for an SRQ; the queues of the QP are discarded
	}
}
