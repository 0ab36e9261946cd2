package softnic

import (
	"runtime"
	"time"

	"ibverbx/internal/udp"
)

// pollPause is how long a port's goroutine stays away while the program polls, or while another goroutine reads the port.
// Meanwhile packets wake no goroutine, which would cost them a core.
const pollPause = time.Millisecond

// yieldAfter is how many reads of a polling program may find nothing before it yields its
// processor. Another goroutine may have to run for packets to come.
const yieldAfter = 100

const (
	// streamBytes is the least size of a batch that belongs to a long message.
	streamBytes = 16 << 10
	// streamYield is how many reads may find nothing after such a batch before the port's
	// goroutine yields its processor. The sender may need it, and yielding is cheaper than a
	// wake-up. After short messages the goroutine stays: then the sender waits for an answer.
	streamYield = 10
)

// midPause is how long the port's goroutine leaves the socket alone when it has drained it in the
// middle of a message. More packets will come. Reading too early takes the socket's queue away
// from the sender's processor, which costs 2 to 3 % of the time of long messages
// (docs/performance.md).
const midPause = 5 * time.Microsecond

// start starts the port's goroutine, and the timer for the keys of sealed packets.
func (u *udpPort) start() {
	if u.sealed {
		u.ticker = time.AfterFunc(sealTick, u.tick)
	}
	u.attendant.alarm, u.attendant.stop = make(chan struct{}, 1), make(chan struct{})
	u.attendant.stopped.Add(1)
	go u.run()
}

// end stops both and waits for the goroutine.
func (u *udpPort) end() error {
	if u.ticker != nil {
		u.ticker.Stop()
	}
	close(u.attendant.stop)
	err := u.conn.Interrupt()
	u.attendant.stopped.Wait()
	return err
}

// run serves packets that come while the program does not poll.
func (u *udpPort) run() {
	defer u.attendant.stopped.Done()
	pause := time.NewTimer(time.Hour)
	defer pause.Stop()
	for u.attend(pause) {
		if u.conn.Wait() != nil {
			return // interrupted
		}
	}
}

// attend looks for packets until none has come for a while. It reports false when the port is closed.
func (u *udpPort) attend(pause *time.Timer) bool {
	w := &u.wire.link.watch
	defer w.end(u)
	select {
	case <-u.attendant.alarm: // it is awake
	default:
	}
	polls := u.attendant.polls.Load()
	idle, misses := time.Now(), 0
	for reads := 1; ; reads++ {
		select {
		case <-u.attendant.stop:
			return false
		default:
		}
		u.reading.Lock()
		s := u.sight()
		u.reading.Unlock()
		if u.attendant.polls.Load() != polls {
			w.end(u)
			if u.stayAway(pause) == closed {
				return false
			}
			polls, idle = u.attendant.polls.Load(), time.Now()
			continue
		}
		if !w.begin(u) {
			if s.some {
				continue // who looks may have no time for it
			}
			if why := w.stayAway(u, pause); why != paused {
				return why == alarmed
			}
			continue
		}
		if u.attendant.looks.Load() && (!s.some || reads%othersEvery == 0) {
			s.add(w.others(u))
		}
		if s.some {
			idle, misses = time.Now(), 0
			for s.midway && time.Since(idle) < midPause {
				runtime.Gosched()
			}
			continue
		}
		if time.Since(idle) >= u.wire.link.cfg.Spin {
			return true
		}
		if misses++; s.stream && misses > streamYield {
			udp.Yield()
		}
		runtime.Gosched()
	}
}

// wakening is why a goroutine has come back.
type wakening uint8

const (
	paused  wakening = iota // pollPause is over
	alarmed                 // who has read the port stops
	closed                  // the port is closed
)

// stayAway waits until the port may need its goroutine.
func (u *udpPort) stayAway(pause *time.Timer) wakening {
	pause.Reset(pollPause)
	select {
	case <-pause.C:
		return paused
	case <-u.attendant.alarm:
		return alarmed
	case <-u.attendant.stop:
		return closed
	}
}

// poll reads for a program that has found its CQ empty, and reports whether packets came. watched
// says that the program will sleep rather than poll again.
func (u *udpPort) poll(watched bool) bool {
	if !watched {
		u.attendant.polls.Add(1)
	}
	if !u.reading.TryLock() {
		return true // the other reader may have found something
	}
	some := u.read()
	if some {
		u.misses = 0
	} else {
		u.misses++
	}
	yield := u.misses > yieldAfter
	u.reading.Unlock()
	if yield {
		udp.Yield()
	}
	return some
}

// awaited calls the goroutine back: the program, or a goroutine that has read for it, is about to sleep.
func (u *udpPort) awaited() {
	select {
	case u.attendant.alarm <- struct{}{}:
	default:
	}
}
