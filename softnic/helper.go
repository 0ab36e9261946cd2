package softnic

import (
	"sync"
	"time"
)

// helper is the goroutine of a link that lives in real time: it does what must happen
// while nobody posts or polls. It starts when something is first due at a later time
// and sleeps while nothing is.
type helper struct {
	core *core
	// wakeAt is when the goroutine will look next; guarded by the core's lock.
	wakeAt  int64
	started bool
	poke    chan struct{}
	stop    chan struct{}
	done    sync.WaitGroup
	nics    []*NIC // to be read before timers fire
}

func newHelper(c *core) *helper {
	return &helper{core: c, wakeAt: never, poke: make(chan struct{}, 1), stop: make(chan struct{})}
}

// wakeBy makes sure that the goroutine looks no later than at. The core's lock is held.
func (h *helper) wakeBy(at int64) {
	if at >= h.wakeAt {
		return
	}
	h.wakeAt = at
	if !h.started {
		h.started = true
		h.done.Add(1)
		go h.run()
		return
	}
	select {
	case h.poke <- struct{}{}:
	default:
	}
}

func (h *helper) run() {
	defer h.done.Done()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-h.poke:
		case <-h.stop:
			return
		}
		if d := h.look(); d >= 0 {
			timer.Reset(d)
		}
	}
}

// look runs what is due and returns how long to sleep, -1 for until poked.
func (h *helper) look() time.Duration {
	c := h.core
	caughtUp := h.catchUp()
	c.mu.Lock()
	defer c.mu.Unlock()
	h.wakeAt = 0 // awake: nobody needs to poke
	c.at = c.clock()
	c.resume()
	c.work()
	c.caughtUp = caughtUp
	c.settleTimed()
	c.caughtUp = false
	c.link.flush()
	h.wakeAt = c.next()
	if h.wakeAt == never {
		return -1
	}
	return time.Duration(max(h.wakeAt-c.at, 0))
}

// catchUp reads what has arrived on a link to which others send, if a timer is due: it may
// answer to it. It reports whether it did. The core's lock is not held.
func (h *helper) catchUp() bool {
	c := h.core
	if !c.batched {
		return false
	}
	c.mu.Lock()
	c.at = c.clock()
	due := c.due()
	h.nics = h.nics[:0]
	if due {
		for _, n := range c.nics {
			h.nics = append(h.nics, n)
		}
	}
	c.mu.Unlock()
	catchUp(h.nics)
	clear(h.nics)
	return due
}

// end stops the goroutine and waits for it. The core's lock must not be held.
func (h *helper) end() {
	close(h.stop)
	h.done.Wait()
}
