package softnic

import (
	"runtime"
	"time"

	"ibverbx/internal/udp"
)

// pollPause is how long a port's goroutine stays away while the program polls. Meanwhile packets
// wake no goroutine, which would cost the program a core.
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
	u.alarm, u.stop = make(chan struct{}, 1), make(chan struct{})
	u.stopped.Add(1)
	go u.run()
}

// end stops both and waits for the goroutine.
func (u *udpPort) end() error {
	if u.ticker != nil {
		u.ticker.Stop()
	}
	close(u.stop)
	err := u.conn.Interrupt()
	u.stopped.Wait()
	return err
}

// run serves packets that come while the program does not poll.
func (u *udpPort) run() {
	defer u.stopped.Done()
	pause := time.NewTimer(time.Hour)
	defer pause.Stop()
	for u.attend(pause) {
		if u.conn.Wait() != nil {
			return // interrupted
		}
	}
}

// attend reads until no packet has come for a while. It reports false when the port is closed.
func (u *udpPort) attend(pause *time.Timer) bool {
	polls := u.polls.Load()
	idle, misses := time.Now(), 0
	for {
		select {
		case <-u.stop:
			return false
		default:
		}
		u.reading.Lock()
		some := u.read()
		stream := u.batch >= streamBytes
		midway := stream && u.midway && u.reader.Drained() && u.wire.link.cfg.Spin >= midPause
		u.reading.Unlock()
		if now := u.polls.Load(); now != polls {
			pause.Reset(pollPause)
			select {
			case <-pause.C:
			case <-u.alarm:
			case <-u.stop:
				return false
			}
			polls, idle = u.polls.Load(), time.Now()
			continue
		}
		if some {
			idle, misses = time.Now(), 0
			for midway && time.Since(idle) < midPause {
				runtime.Gosched()
			}
			continue
		}
		if time.Since(idle) >= u.wire.link.cfg.Spin {
			return true
		}
		if misses++; stream && misses > streamYield {
			udp.Yield()
		}
		runtime.Gosched()
	}
}

// poll reads for a program that has found its CQ empty, and reports whether packets came. watched
// says that the program will sleep rather than poll again.
func (u *udpPort) poll(watched bool) bool {
	if !watched {
		u.polls.Add(1)
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

// awaited makes the goroutine read: the program is about to sleep.
func (u *udpPort) awaited() {
	select {
	case u.alarm <- struct{}{}:
	default:
	}
}
