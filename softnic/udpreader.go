package softnic

import (
	"runtime"
	"time"

	"ibverbx/internal/udp"
)

// pollPause is how long a port's goroutine stays away while the program polls. While it is
// away nobody is woken by packets, which would cost the program a core.
const pollPause = time.Millisecond

// yieldAfter is how many reads of a polling program may be in vain before it lets others have
// its processor: what it waits for may be done by one of them.
const yieldAfter = 100

// streamBytes is what a batch has at least if it is part of a long message, and streamYield how
// many reads in vain after such a batch the port's goroutine makes before it lets others have its
// processor. Who sends may be one of them, and is faster than being woken would be. After short
// messages it stays: then who sends waits for an answer.
const (
	streamBytes = 16 << 10
	streamYield = 10
)

// midPause is how long the port's goroutine leaves the socket alone when it has taken all that
// was there and the last packet was not the last of its message. More will come, and who looks for it
// in vain takes the socket's queue away from the processor that sends: 2 to 3 % of the time of
// long messages (docs/performance.md).
const midPause = 5 * time.Microsecond

// start starts the port's goroutine.
func (u *udpPort) start() {
	a := &u.attention
	a.alarm, a.stop = make(chan struct{}, 1), make(chan struct{})
	a.stopped.Add(1)
	go u.run()
}

// end stops the goroutine and waits for it.
func (u *udpPort) end() error {
	close(u.attention.stop)
	err := u.conn.Interrupt()
	u.attention.stopped.Wait()
	return err
}

// run serves packets that come while the program does not poll.
func (u *udpPort) run() {
	defer u.attention.stopped.Done()
	pause := time.NewTimer(time.Hour)
	defer pause.Stop()
	for u.attend(pause) {
		if u.conn.Wait() != nil {
			return // interrupted
		}
	}
}

// attend reads until nothing has come for a while. It reports false when the port is closed.
func (u *udpPort) attend(pause *time.Timer) bool {
	a := &u.attention
	polls := a.polls.Load()
	idle, vain := time.Now(), 0
	for {
		select {
		case <-a.stop:
			return false
		default:
		}
		u.reading.Lock()
		some := u.read()
		stream := u.batch >= streamBytes
		midway := stream && u.midway && u.reader.Drained() && u.link.cfg.Spin >= midPause
		u.reading.Unlock()
		if now := a.polls.Load(); now != polls {
			pause.Reset(pollPause)
			select {
			case <-pause.C:
			case <-a.alarm:
			case <-a.stop:
				return false
			}
			polls, idle = a.polls.Load(), time.Now()
			continue
		}
		if some {
			idle, vain = time.Now(), 0
			for midway && time.Since(idle) < midPause {
				runtime.Gosched()
			}
			continue
		}
		if time.Since(idle) >= u.link.cfg.Spin {
			return true
		}
		if vain++; stream && vain > streamYield {
			udp.Yield()
		}
		runtime.Gosched()
	}
}

// poll reads for a program that has found its CQ empty, and reports whether something came.
// watched says that the program will sleep rather than poll again.
func (u *udpPort) poll(watched bool) bool {
	if !watched {
		u.attention.polls.Add(1)
	}
	if !u.reading.TryLock() {
		return true // somebody else reads: there may be something now
	}
	some := u.read()
	if some {
		u.vain = 0
	} else {
		u.vain++
	}
	yield := u.vain > yieldAfter
	u.reading.Unlock()
	if yield {
		udp.Yield()
	}
	return some
}

// awaited makes the goroutine attend: the program is about to sleep.
func (u *udpPort) awaited() {
	select {
	case u.attention.alarm <- struct{}{}:
	default:
	}
}
