package softnic

import (
	"runtime"
	"slices"
	"sync/atomic"
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
	s := u.sighted(u.read())
	u.reading.Unlock()
	s.some = u.first && u.wire.look() || s.some
	return s
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
func (u *udpPort) sleep() bool {
	if !u.first {
		return u.conn.Wait() == nil
	}
	if !u.wire.doze() {
		return true
	}
	defer u.wire.rise()
	return u.conn.Wait() == nil
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
	if u.misses > yieldAfter {
		// Before the read, so that the program learns what arrives meanwhile: it may look for the end of its connection next.
		u.reading.Unlock()
		udp.Yield()
		if !u.reading.TryLock() {
			return true
		}
	}
	some := u.read()
	if u.misses++; some {
		u.misses = 0
	}
	u.reading.Unlock()
	return some
}

// othersEvery is how many reads a goroutine does on its own port, at most, before it reads the others.
const othersEvery = 8

// udpWatch says who looks for packets of a link. A goroutine looks by reading again and again. If every
// port's goroutine did so, a machine with few processors would have none left for the senders, and one that
// sleeps wakes late because nothing is free to run it. So at most half as many look as there are processors.
// Each of them also reads the ports whose own goroutine does not look. The others stay away until one stops.
//
// NICs do not wait for each other: a port whose NIC is busy is left out. A NIC that may wait for a device or for a
// neighbor while it serves packets is alone (udpWire.alone). Its goroutine always looks, and nobody else reads its ports.
type udpWatch struct {
	// most is how many goroutines may look at a time, at least 1.
	most int32
	// looking is how many do.
	looking atomic.Int32
	// ports are those that QPs use. The slice is replaced, never changed.
	ports atomic.Pointer[[]*udpPort]
}

func (w *udpWatch) init() {
	w.most = int32(max(runtime.GOMAXPROCS(0)/2, 1))
	w.ports.Store(new([]*udpPort))
}

// set notes whether QPs use a port. Who calls it holds the link's mu.
func (w *udpWatch) set(u *udpPort, used bool) {
	ports := slices.DeleteFunc(slices.Clone(*w.ports.Load()), func(p *udpPort) bool { return p == u })
	if used {
		ports = append(ports, u)
	}
	w.ports.Store(&ports)
}

// begin reports whether u's goroutine may look, or does so already.
func (w *udpWatch) begin(u *udpPort) bool {
	if u.wire.alone.Load() {
		w.end(u)
		return true
	}
	if u.attendant.looks.Load() {
		return true
	}
	for {
		n := w.looking.Load()
		if n >= w.most {
			return false
		}
		if w.looking.CompareAndSwap(n, n+1) {
			u.attendant.looks.Store(true)
			return true
		}
	}
}

// end makes u's goroutine stop looking, if it does, and wakes those that stay away.
func (w *udpWatch) end(u *udpPort) {
	if !u.attendant.looks.Load() {
		return
	}
	u.attendant.looks.Store(false)
	w.looking.Add(-1)
	for _, o := range *w.ports.Load() {
		if o.attendant.waits.Load() {
			o.attendant.call()
		}
	}
}

// stayAway makes u's goroutine, which may not look, stay away until it may. It reports why it has come back.
func (w *udpWatch) stayAway(u *udpPort, pause *time.Timer) wakening {
	u.attendant.waits.Store(true)
	defer u.attendant.waits.Store(false)
	if w.begin(u) { // another one stopped before it could see waits
		return paused
	}
	return u.attendant.stayAway(pause)
}

// others reads the ports for which nobody looks, for u's goroutine.
func (w *udpWatch) others(u *udpPort) (s sighting) {
	for _, o := range *w.ports.Load() {
		if o == u || o.attendant.looks.Load() || o.wire.alone.Load() || !o.reading.TryLock() {
			continue
		}
		if polls := o.attendant.polls.Load(); polls != o.seen {
			o.seen = polls // the program reads it
		} else if c := o.nic.core; c.mu.TryLock() {
			s.add(o.sighted(o.readLocked()))
			c.mu.Unlock()
		}
		o.reading.Unlock()
	}
	return s
}

// sighted says what a read has found. The port's reading is held.
func (u *udpPort) sighted(some bool) (s sighting) {
	s.some = some
	s.stream = u.batch >= streamBytes
	s.midway = s.some && s.stream && u.midway && u.reader.Drained() && u.wire.link.cfg.Spin >= midPause
	return s
}
