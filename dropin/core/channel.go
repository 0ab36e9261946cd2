//go:build linux && cgo && (amd64 || arm64)

package main

import (
	"encoding/binary"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"ibverbx/verbs"
)

// channel is a completion channel: a queue of events, and a descriptor with a token for each that programs poll.
type channel struct {
	fd int
	// mu guards the fields below, and fields of the channel's CQs. It is locked inside the locks of a NIC, so no NIC may be called with it
	// held.
	mu    sync.Mutex
	queue []*cqueue
	users int
}

// cqueue is a CQ.
type cqueue struct {
	verbs.CQ
	ctx    *context
	cookie uint64
	// ch is the CQ's channel, or nil.
	ch *channel
	// delivered counts the completion events that the program has consumed. dying is set while the CQ is being destroyed, and missed if an
	// event arrived meanwhile. ch.mu guards the three.
	delivered     uint32
	dying, missed bool
	// async counts the asynchronous events that the program has consumed. library.events guards it.
	async uint32
}

// signal adds a token to an event descriptor. It fails only with 2^64 tokens.
func signal(fd int) {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	_, _ = unix.Write(fd, one[:])
}

// absorb removes up to n tokens of an event descriptor, or all of them unless it is a semaphore, and never blocks. On kernels that cannot do
// that the tokens stay, and a program gets a spurious wake-up for each.
func absorb(fd, n int) {
	var token [8]byte
	for range n {
		if k, err := unix.Preadv2(fd, [][]byte{token[:]}, -1, unix.RWF_NOWAIT); k <= 0 || err != nil {
			return
		}
	}
}

// wake queues an event of the CQ. The NIC calls it, with its locks held.
func (c *cqueue) wake() {
	c.ch.mu.Lock()
	defer c.ch.mu.Unlock()
	if c.missed = c.dying; !c.dying {
		c.push()
	}
}

// push queues an event. ch.mu is held.
func (c *cqueue) push() {
	c.ch.queue = append(c.ch.queue, c)
	signal(c.ch.fd)
}

// take returns the CQ of the oldest event, or nil.
func (h *channel) take() *cqueue {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.queue) == 0 {
		return nil
	}
	c := h.queue[0]
	h.queue = slices.Delete(h.queue, 0, 1)
	c.delivered++
	return c
}

func (l *library) destroyChannel(n uint32) error {
	h := l.channels.get(n)
	if h == nil {
		return gone
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.users > 0 {
		return syscall.EBUSY
	}
	l.channels.remove(n)
	return nil
}

func (l *library) createCQ(ctx uint32, cfg verbs.CQConfig, ch uint32, cookie uint64) (n uint32, depth int, err error) {
	x := l.contexts.get(ctx)
	if x == nil {
		return 0, 0, gone
	}
	c := &cqueue{ctx: x, cookie: cookie}
	if ch != 0 {
		if c.ch = l.channels.get(ch); c.ch == nil {
			return 0, 0, gone
		}
		cfg.Waker = verbs.NewWakerFunc(c.wake)
	}
	if c.CQ, err = x.CreateCQ(cfg); err != nil {
		return 0, 0, err
	}
	if c.ch != nil {
		c.ch.mu.Lock()
		c.ch.users++
		c.ch.mu.Unlock()
	}
	return l.cqs.add(c), c.Depth(), nil
}

// resize changes the depth of the CQ and returns the new one.
func (c *cqueue) resize(depth int) (int, error) {
	err := c.CQ.(interface{ Resize(depth int) error }).Resize(depth)
	return c.Depth(), err
}

// arm requests an event. Without a channel it has no effect.
func (c *cqueue) arm(solicited bool) error {
	if c.ch == nil {
		return nil
	}
	return c.Arm(solicited)
}

// setDying stops the queueing of events, or resumes it with the one that arrived meanwhile.
func (c *cqueue) setDying(dying bool) {
	if c.ch == nil {
		return
	}
	c.ch.mu.Lock()
	defer c.ch.mu.Unlock()
	c.dying = dying
	if c.missed && !dying {
		c.missed = false
		c.push()
	}
}

// leave drops the events of a closed CQ and returns the number of consumed ones.
func (c *cqueue) leave() uint32 {
	if c.ch == nil {
		return 0
	}
	c.ch.mu.Lock()
	defer c.ch.mu.Unlock()
	before := len(c.ch.queue)
	c.ch.queue = slices.DeleteFunc(c.ch.queue, func(q *cqueue) bool { return q == c })
	absorb(c.ch.fd, before-len(c.ch.queue))
	c.ch.users--
	return c.delivered
}

func (l *library) destroyCQ(n uint32, d *abiDelivered) error {
	c := l.cqs.get(n)
	if c == nil {
		return gone
	}
	l.events.Lock()
	defer l.events.Unlock()
	c.setDying(true) // closing a CQ makes the NIC wake its waiters
	if err := c.Close(); err != nil {
		c.setDying(false)
		return err
	}
	l.cqs.remove(n)
	d.completion, d.async = c.leave(), c.async
	c.ctx.settle()
	return nil
}
