package softnic

import (
	"sync"
	"time"

	"ibverbx/internal/clock"
)

// helper is the goroutine of a link in real time. It settles the core when something is due and the program makes no
// call. It starts when something is first due at a later time, and sleeps while nothing is due.
type helper struct {
	core *core
	// wakeAt is the next time at which the goroutine runs. The core's lock guards it.
	wakeAt int64
	// started is set once the goroutine runs. The core's lock guards it.
	started bool
	poke    chan struct{}
	stop    chan struct{}
	done    sync.WaitGroup
}

func newHelper(c *core) *helper {
	return &helper{core: c, wakeAt: never, poke: make(chan struct{}, 1), stop: make(chan struct{})}
}

// wakeBy makes the goroutine run no later than at. The core's lock is held.
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
		if d := h.advance(); d >= 0 {
			timer.Reset(d)
		}
	}
}

// advance settles the core and returns the time to sleep, -1 until poked.
func (h *helper) advance() time.Duration {
	c := h.core
	caughtUp := c.udpNIC != nil && c.udpNIC.catchUp()
	c.mu.Lock()
	defer c.mu.Unlock()
	h.wakeAt = 0 // awake: no poke is needed
	c.caughtUp = caughtUp
	h.wakeAt = c.advance()
	c.caughtUp = false
	if h.wakeAt == never {
		return -1
	}
	return time.Duration(max(h.wakeAt-c.at, 0))
}

// end stops the goroutine and waits for it. The caller must not hold the core's lock.
func (h *helper) end() {
	close(h.stop)
	h.done.Wait()
}

// never is a time in the infinite future.
const never = clock.Never

// ticksPerSecond is the frequency of the completion clock.
const ticksPerSecond = 1e9

// ticks reads the completion clock, which starts at 1: 0 means no timestamp.
func (c *core) ticks() uint64 { return uint64(c.clock()) + 1 }

// ReadClock implements verbs.ClockReader.
func (x *hostContext) ReadClock() (ticks, hz uint64, err error) {
	return x.core.ticks(), ticksPerSecond, nil
}

// wallClock returns the time in nanoseconds since 1970, for captured packets.
func wallClock() int64 { return time.Now().UnixNano() }
