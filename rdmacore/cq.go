//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package rdmacore

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"ibverbx/verbs"
)

// cq is a completion queue.
type cq struct {
	ctx     *nicContext
	h, key  handle
	depth   int
	order   uint64 // the locking order of two CQs
	waker   *verbs.Waker
	users   int         // QPs that use it; guarded by the lock of the context
	overrun atomic.Bool // set by an overrun event

	mu     sync.Mutex
	closed bool
	// unpolled holds completions removed from the library's queue when a QP was closed or reset. They are
	// older than the ones in the queue.
	unpolled []verbs.WC
	// heapDst is never set. It makes the compiler allocate the callers' slices on the heap: a stack could
	// move before the call reaches C.
	heapDst *verbs.WC
	cPolls  uint64 // number of polls in C, for tests
}

var _ verbs.CQ = (*cq)(nil)

func (x *nicContext) createCQ(cfg verbs.CQConfig) (*cq, error) {
	if cfg.Depth < 1 || cfg.Depth > x.attr.MaxCQE {
		return nil, verbs.Invalidf("CQConfig.Depth is %d: want 1 to %d", cfg.Depth, x.attr.MaxCQE)
	}
	if cfg.Timestamp && x.capabilities()&verbs.CapTimestamp == 0 {
		return nil, fmt.Errorf("%w: completions of this device carry no timestamp", verbs.ErrNotSupported)
	}
	c := &cq{ctx: x, waker: cfg.Waker, order: x.nextSerial()}
	var ch handle
	if cfg.Waker != nil {
		var err error
		if ch, err = x.channelFor(); err != nil {
			return nil, err
		}
	}
	vector := int(c.order % uint64(max(x.opened.vectors, 1)))
	q, err := x.makeCQ(cfg, ch, vector)
	if err != nil {
		return nil, err
	}
	c.h, c.key, c.depth = q.h, q.key, q.depth
	x.events.add(c.key, verbs.Event{CQ: c})
	x.mu.Lock()
	defer x.mu.Unlock()
	x.cqs.add(c)
	return c, nil
}

// makeCQ creates an extended CQ if the device has them, otherwise a plain one. Some devices refuse flags,
// and some claim to have extended CQs but fail to create them.
//
// The lock of a cq covers every driver access to its queue: polling, arming, and removing
// completions when a QP is reset or destroyed. The driver therefore needs no lock
// (IBV_CREATE_CQ_ATTR_SINGLE_THREADED).
func (x *nicContext) makeCQ(cfg verbs.CQConfig, ch handle, vector int) (queue, error) {
	in := cqInit{depth: cfg.Depth, channel: ch, vector: vector}
	if x.opened.extendedCQ && (cfg.Timestamp || !x.dev.lib.cfg.PlainCQ) {
		in.fields, in.flags, in.singlePoll = cqFields, cqSingleThreaded, x.singlePoll
		if cfg.Timestamp {
			in.fields |= cqTimestamp
		}
		q, errno := cCreateCQ(x.lib, x.h, &in)
		if lacksFeature(errno) {
			in.flags = 0
			q, errno = cCreateCQ(x.lib, x.h, &in)
		}
		if cfg.Timestamp || !lacksFeature(errno) {
			return q, errnoErr(errno)
		}
		in.fields = 0
	}
	q, errno := cCreateCQ(x.lib, x.h, &in)
	return q, errnoErr(errno)
}

// lacksFeature reports whether an errno means that the device lacks the requested feature.
func lacksFeature(errno syscall.Errno) bool {
	return errno == unix.EOPNOTSUPP || errno == unix.ENOSYS || errno == unix.EINVAL
}

func (c *cq) Depth() int { return c.depth }

func (c *cq) Poll(dst []verbs.WC) (int, error) {
	c.mu.Lock()
	if c.closed || len(c.unpolled) > 0 || len(dst) == 0 {
		defer c.mu.Unlock()
		return c.pollSlow(dst)
	}
	n := c.poll(dst)
	c.mu.Unlock()
	if n > 0 {
		return n, nil
	}
	if n == 0 && !c.overrun.Load() {
		return 0, nil
	}
	return 0, c.pollError(n)
}

// poll calls C once. It returns the number of completions or a negative errno.
func (c *cq) poll(dst []verbs.WC) int {
	into := unsafe.SliceData(dst)
	if c.h == 0 {
		c.heapDst = into
	}
	n := cPoll(c.h, uintptr(unsafe.Pointer(into)), len(dst))
	runtime.KeepAlive(into)
	c.cPolls++
	return int(n)
}

// pollSlow handles the rare cases: a closed CQ, an empty dst, unpolled completions.
func (c *cq) pollSlow(dst []verbs.WC) (int, error) {
	if c.closed {
		return 0, verbs.NewOpError("poll CQ", c.ctx.dev.Name(), 0, verbs.ErrClosed)
	}
	n := copy(dst, c.unpolled)
	c.unpolled = slices.Delete(c.unpolled, 0, n)
	if len(c.unpolled) == 0 {
		c.unpolled = nil
	}
	return n, nil
}

// pollError explains a failed poll: an overrun, or an errno of the driver.
func (c *cq) pollError(n int) error {
	if n < 0 {
		return verbs.NewOpError("poll CQ", c.ctx.dev.Name(), 0, errnoErr(unix.Errno(-n)))
	}
	return verbs.NewOpError("poll CQ", c.ctx.dev.Name(), 0, verbs.ErrCQOverrun)
}

// discard removes a QP's completions from the queue. The lock is held, and the QP
// produces no more of them.
func (c *cq) discard(qpn uint32) {
	dead := func(wc verbs.WC) bool { return wc.QPN == qpn }
	c.unpolled = slices.DeleteFunc(c.unpolled, dead)
	batch := make([]verbs.WC, 64)
	for {
		n := c.poll(batch)
		if n <= 0 {
			break
		}
		c.unpolled = append(c.unpolled, slices.DeleteFunc(batch[:n:n], dead)...)
	}
	if len(c.unpolled) == 0 {
		c.unpolled = nil
	}
}

func (c *cq) Arm(solicitedOnly bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	const op = "arm CQ"
	switch {
	case c.closed:
		return verbs.NewOpError(op, c.ctx.dev.Name(), 0, verbs.ErrClosed)
	case c.waker == nil:
		return verbs.NewOpError(op, c.ctx.dev.Name(), 0, fmt.Errorf("%w: the CQ was created without a Waker", verbs.ErrNotSupported))
	}
	if errno := cArm(c.h, solicitedOnly); errno != 0 {
		return verbs.NewOpError(op, c.ctx.dev.Name(), 0, errnoErr(errno))
	}
	return nil
}

func (c *cq) Close() error {
	return ignoreClosed(c.ctx.do("close CQ", c.destroy))
}

func (c *cq) destroy() error {
	x := c.ctx
	c.mu.Lock()
	defer c.mu.Unlock()
	return x.destroyObject(&c.closed, &c.users, "queues of QPs", func() syscall.Errno {
		return x.events.removeDuring(c.key, func() syscall.Errno { return x.destroyed(cDestroyCQ(x.lib, c.h)) })
	}, func() {
		c.unpolled = nil
		delete(x.cqs, c)
		if c.waker != nil {
			c.waker.Wake()
		}
	})
}
