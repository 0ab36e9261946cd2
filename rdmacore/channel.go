//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package rdmacore

import "syscall"

// channel is the completion channel of a context, which all its CQs with a Waker share. The
// first of them creates it.
type channel struct {
	h       handle
	watcher *watcher
}

// channelFor returns the completion channel, and creates it if necessary.
func (x *nicContext) channelFor() (handle, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.channel.h != 0 {
		return x.channel.h, nil
	}
	h, fd, errno := cCreateChannel(x.lib, x.h)
	if errno != 0 {
		return 0, errnoErr(errno)
	}
	w, err := watch(fd, "completion events", func() bool { return x.drainCompletions(h) })
	if err != nil {
		_ = cDestroyChannel(x.lib, h)
		return 0, err
	}
	x.channel = channel{h: h, watcher: w}
	return h, nil
}

// drainCompletions reads all pending completion events and wakes the Wakers of their CQs. The
// library does not destroy a CQ between its event and the acknowledgement. A CQ that is
// being destroyed is already unknown here.
func (x *nicContext) drainCompletions(h handle) (end bool) {
	return x.drain(func() syscall.Errno {
		key, errno := cCQEvent(x.lib, h)
		if errno != 0 {
			return errno
		}
		ev := x.events.lookup(key)
		if c, ok := ev.CQ.(*cq); ok && c.waker != nil {
			c.waker.Wake()
		}
		cAckCQEvent(x.lib, key)
		return 0
	})
}

// close destroys the channel. All its CQs must be destroyed.
func (c *channel) close(lib handle) {
	if c.h == 0 {
		return
	}
	c.watcher.stop()
	_ = cDestroyChannel(lib, c.h) // fails only if a device is gone
	*c = channel{}
}
