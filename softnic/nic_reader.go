package softnic

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"ibverbx/internal/udp"
)

// pollPause is the time that a background reader pauses while the program polls or another goroutine
// reads its packets. Arriving packets do not wake it during the pause, which would cost a core.
const pollPause = time.Millisecond

// streamYield is the number of empty reads after a batch of a long message before the reader yields its processor. The
// sender may need it, and yielding is cheaper than a wake-up. After short messages the reader does not yield, because
// the sender then waits for a response.
const streamYield = 10

// midPause is the time that a reader leaves a socket alone after draining it in the middle of a
// message. Reading too early takes the socket's queue away from the sender's processor, which costs 2
// to 3 % of the time of long messages (docs/performance.md).
const midPause = 5 * time.Microsecond

// backgroundReader is the goroutine that reads packets while the program does not poll.
type backgroundReader struct {
	// polls changes while the program polls without finding completions.
	polls atomic.Uint32
	// seen is the last value of polls that the goroutine has read.
	seen atomic.Uint32
	// spinning is set while spinLimiter lets the goroutine read repeatedly.
	spinning atomic.Bool
	// waiting is set while the goroutine pauses until another one stops spinning.
	waiting atomic.Bool
	// wakeup ends a pause of the goroutine.
	wakeup  chan struct{}
	stop    chan struct{}
	stopped sync.WaitGroup
}

// packetSource is the input of a backgroundReader: a UDP port or the ring of a ShmLink.
type packetSource interface {
	// pollOnce serves a batch of packets. fresh is set on the first call after a pause.
	pollOnce(fresh bool) pollResult
	// shareWork reports whether the goroutine may keep spinning. It returns s, and may add packets of other ports to
	// it. looks counts the calls of pollOnce.
	shareWork(s pollResult, looks int) (pollResult, bool)
	// pause pauses a goroutine that may not spin.
	pause(pause *time.Timer) wakeReason
	// stopSpinning records that the goroutine stops reading for a while.
	stopSpinning()
	// sleep waits for packets. It returns false if the source is closed.
	sleep() bool
}

// pollResult describes the packets found by one read.
type pollResult struct {
	served   bool // packets were served
	stream   bool // the last ones belong to a long message
	moreSoon bool // more packets of that message will follow
}

func (s *pollResult) add(o pollResult) {
	s.served, s.stream, s.moreSoon = s.served || o.served, s.stream || o.stream, s.moreSoon || o.moreSoon
}

// wakeReason is the reason why a paused goroutine resumes.
type wakeReason uint8

const (
	pauseOver    wakeReason = iota // pollPause has elapsed
	wokenUp                        // wake was called
	sourceClosed                   // the source is closed
)

// start starts the goroutine.
func (a *backgroundReader) start(src packetSource, spin time.Duration) {
	a.wakeup, a.stop = make(chan struct{}, 1), make(chan struct{})
	a.stopped.Go(func() { a.run(src, spin) })
}

// run serves packets while the program does not poll.
func (a *backgroundReader) run(src packetSource, spin time.Duration) {
	pause := time.NewTimer(time.Hour)
	defer pause.Stop()
	for a.spin(src, spin, pause) && src.sleep() {
	}
}

// spin reads repeatedly until no packet has arrived for a time. It returns false once the source is closed.
func (a *backgroundReader) spin(src packetSource, spin time.Duration, pause *time.Timer) bool {
	defer src.stopSpinning()
	select {
	case <-a.wakeup: // already awake
	default:
	}
	polls := a.samplePolls()
	idle, misses, fresh := time.Now(), 0, true
	for looks := 1; ; looks++ {
		if a.stopping() {
			return false
		}
		s := src.pollOnce(fresh)
		fresh = false
		if a.polls.Load() != polls {
			src.stopSpinning()
			if a.pause(pause) == sourceClosed {
				return false
			}
			polls, idle, fresh = a.samplePolls(), time.Now(), true
			continue
		}
		s, mine := src.shareWork(s, looks)
		if !mine {
			if s.served {
				continue // the spinning goroutine may be too busy to read this port
			}
			if why := src.pause(pause); why != pauseOver {
				return why == wokenUp
			}
			continue
		}
		if s.served {
			idle, misses = time.Now(), 0
			for s.moreSoon && time.Since(idle) < midPause {
				runtime.Gosched()
			}
			continue
		}
		if time.Since(idle) >= spin {
			return true
		}
		if misses++; s.stream && misses > streamYield {
			udp.Yield()
		}
		runtime.Gosched()
	}
}

// samplePolls returns polls, and lets the next poll change it.
func (a *backgroundReader) samplePolls() uint32 {
	n := a.polls.Load()
	a.seen.Store(n)
	return n
}

// notePoll records an empty poll of the program. Only the first one after samplePolls costs a locked instruction.
func (a *backgroundReader) notePoll() {
	if n := a.polls.Load(); n == a.seen.Load() {
		a.polls.Store(n + 1)
	}
}

// stopping reports whether the goroutine must stop.
func (a *backgroundReader) stopping() bool {
	select {
	case <-a.stop:
		return true
	default:
		return false
	}
}

// pause waits until the goroutine may be needed.
func (a *backgroundReader) pause(pause *time.Timer) wakeReason {
	pause.Reset(pollPause)
	select {
	case <-pause.C:
		return pauseOver
	case <-a.wakeup:
		return wokenUp
	case <-a.stop:
		return sourceClosed
	}
}

// wake wakes the goroutine because the program, or a goroutine that has read for it, is about to sleep.
func (a *backgroundReader) wake() {
	select {
	case a.wakeup <- struct{}{}:
	default:
	}
}
