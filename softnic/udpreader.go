package softnic

import (
	"time"

	"ibverbx/internal/udp"
)

// yieldAfter is the number of empty reads of a polling program before it yields its
// processor. Another goroutine may have to run for packets to arrive.
const yieldAfter = 100

// streamBytes is the least size of a batch that belongs to a long message.
const streamBytes = 16 << 10

// start starts the port's goroutine, and the timer for the keys of sealed packets.
func (u *udpPort) start() {
	if u.sealed {
		u.ticker = time.AfterFunc(sealTick, u.tick)
	}
	u.attendant.start(u, u.wire.link.cfg.Spin)
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

// look implements source.
func (u *udpPort) look(bool) sighting {
	u.reading.Lock()
	defer u.reading.Unlock()
	return u.sighted(u.read())
}

// share implements source.
func (u *udpPort) share(s sighting, looks int) (sighting, bool) {
	w := &u.wire.link.watch
	if !w.begin(u) {
		return s, false
	}
	if u.attendant.looks.Load() && (!s.some || looks%othersEvery == 0) {
		s.add(w.others(u))
	}
	return s, true
}

// stayAway implements source.
func (u *udpPort) stayAway(pause *time.Timer) wakening { return u.wire.link.watch.stayAway(u, pause) }

// rest implements source.
func (u *udpPort) rest() { u.wire.link.watch.end(u) }

// sleep implements source.
func (u *udpPort) sleep() bool { return u.conn.Wait() == nil }

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
