package softnic

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"ibverbx/internal/udp"
)

// pollPause is the time that a reader stays away while the program polls, or while another goroutine reads its packets.
// Meanwhile packets wake no goroutine, which would cost them a core.
const pollPause = time.Millisecond

// streamYield is the number of empty looks after a batch of a long message before the reader yields its processor. The
// sender may need it, and yielding is cheaper than a wake-up. After short messages the reader stays: then the sender waits for
// a response.
const streamYield = 10

// midPause is the time that a reader leaves a socket alone after it has drained it in the
// middle of a message. More packets will come. Reading too early takes the socket's queue away
// from the sender's processor, which costs 2 to 3 % of the time of long messages
// (docs/performance.md).
const midPause = 5 * time.Microsecond

// attendant is the goroutine that reads packets while the program does not poll.
type attendant struct {
	// polls changes while the program polls without finding completions. The goroutine reads it.
	polls atomic.Uint32
	// seen is the last value that the goroutine has read.
	seen atomic.Uint32
	// looks is set while the goroutine looks for packets on behalf of udpWatch.
	looks atomic.Bool
	// waits is set while the goroutine stays away until another one stops looking.
	waits atomic.Bool
	// alarm wakes the goroutine when it is needed again.
	alarm   chan struct{}
	stop    chan struct{}
	stopped sync.WaitGroup
}

// source is where an attendant reads: a UDP port or the ring of a ShmLink.
type source interface {
	// look serves a batch of packets. fresh is set on the first look after a pause.
	look(fresh bool) sighting
	// share reports whether the attendant may keep looking. It returns s, and may add packets of other ports to it. looks counts
	// the calls of look.
	share(s sighting, looks int) (sighting, bool)
	// stayAway pauses an attendant that may not look.
	stayAway(pause *time.Timer) wakening
	// rest notes that the attendant stops looking for a while.
	rest()
	// sleep waits for packets. It reports false if the source is closed.
	sleep() bool
}

// sighting is the result of a look for packets.
type sighting struct {
	some   bool // packets were served
	stream bool // the last ones belong to a long message
	midway bool // more packets of it will come soon
}

func (s *sighting) add(o sighting) {
	s.some, s.stream, s.midway = s.some || o.some, s.stream || o.stream, s.midway || o.midway
}

// wakening is the reason why a paused goroutine resumes.
type wakening uint8

const (
	paused  wakening = iota // pollPause is over
	alarmed                 // the goroutine is needed
	closed                  // the source is closed
)

// start starts the goroutine.
func (a *attendant) start(src source, spin time.Duration) {
	a.alarm, a.stop = make(chan struct{}, 1), make(chan struct{})
	a.stopped.Go(func() { a.run(src, spin) })
}

// run serves packets that arrive while the program does not poll.
func (a *attendant) run(src source, spin time.Duration) {
	pause := time.NewTimer(time.Hour)
	defer pause.Stop()
	for a.attend(src, spin, pause) && src.sleep() {
	}
}

// attend looks for packets until none has arrived for spin. It reports false when the source is closed.
func (a *attendant) attend(src source, spin time.Duration, pause *time.Timer) bool {
	defer src.rest()
	select {
	case <-a.alarm: // it is awake
	default:
	}
	polls := a.sample()
	idle, misses, fresh := time.Now(), 0, true
	for looks := 1; ; looks++ {
		if a.ended() {
			return false
		}
		s := src.look(fresh)
		fresh = false
		if a.polls.Load() != polls {
			src.rest()
			if a.stayAway(pause) == closed {
				return false
			}
			polls, idle, fresh = a.sample(), time.Now(), true
			continue
		}
		s, mine := src.share(s, looks)
		if !mine {
			if s.some {
				continue // the goroutine that looks may not have time for it
			}
			if why := src.stayAway(pause); why != paused {
				return why == alarmed
			}
			continue
		}
		if s.some {
			idle, misses = time.Now(), 0
			for s.midway && time.Since(idle) < midPause {
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

// sample returns polls, and lets the next poll change it.
func (a *attendant) sample() uint32 {
	n := a.polls.Load()
	a.seen.Store(n)
	return n
}

// polled notes an empty poll of the program. Only the first one after a look of the goroutine costs a locked instruction.
func (a *attendant) polled() {
	if n := a.polls.Load(); n == a.seen.Load() {
		a.polls.Store(n + 1)
	}
}

// ended reports whether the goroutine has to stop.
func (a *attendant) ended() bool {
	select {
	case <-a.stop:
		return true
	default:
		return false
	}
}

// stayAway waits until the goroutine may be needed.
func (a *attendant) stayAway(pause *time.Timer) wakening {
	pause.Reset(pollPause)
	select {
	case <-pause.C:
		return paused
	case <-a.alarm:
		return alarmed
	case <-a.stop:
		return closed
	}
}

// call wakes the goroutine: the program, or a goroutine that has read for it, is about to sleep.
func (a *attendant) call() {
	select {
	case a.alarm <- struct{}{}:
	default:
	}
}
