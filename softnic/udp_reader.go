package softnic

import (
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"ibverbx/internal/udp"
)

// yieldAfter is the number of empty reads before a polling program yields its processor. Another
// goroutine may have to run before packets arrive.
const yieldAfter = 100

// streamBytes is the minimum size of a batch that belongs to a long message.
const streamBytes = 16 << 10

// start starts the port's goroutine, and the key timer of a port for sealed packets.
func (u *udpPort) start() {
	if u.sealed {
		u.ticker = time.AfterFunc(sealTick, u.tick)
	}
	u.background.start(u, u.udpNIC.link.cfg.Spin)
}

// stop stops the port's goroutine and key timer, and waits for the goroutine.
func (u *udpPort) stop() error {
	if u.ticker != nil {
		u.ticker.Stop()
	}
	close(u.background.stop)
	err := u.conn.Interrupt()
	u.background.stopped.Wait()
	return err
}

// pollOnce implements packetSource.
func (u *udpPort) pollOnce(bool) pollResult {
	u.reading.Lock()
	s := u.result(u.read())
	u.reading.Unlock()
	if w := u.udpNIC; u.first && w.discovery.rings.Load() > 0 {
		w.mu.Lock()
		s.served = !w.nic.closed && w.readRings() || s.served
		w.mu.Unlock()
	}
	return s
}

// shareWork implements packetSource.
func (u *udpPort) shareWork(s pollResult, looks int) (pollResult, bool) {
	w := &u.udpNIC.link.spinners
	if !w.acquire(u) {
		return s, false
	}
	if u.background.spinning.Load() && (!s.served || looks%othersEvery == 0) {
		s.add(w.pollOthers(u))
	}
	return s, true
}

// pause implements packetSource.
func (u *udpPort) pause(pause *time.Timer) wakeReason { return u.udpNIC.link.spinners.pause(u, pause) }

// stopSpinning implements packetSource.
func (u *udpPort) stopSpinning() { u.udpNIC.link.spinners.release(u) }

// sleep implements packetSource.
func (u *udpPort) sleep() bool {
	if !u.first {
		return u.conn.Wait() == nil
	}
	if !u.udpNIC.sleepRings() {
		return true
	}
	defer u.udpNIC.wakeRings()
	return u.conn.Wait() == nil
}

// poll reads for a program that has found its CQ empty, and reports whether packets arrived. watched is set if the
// program will sleep rather than poll again.
func (u *udpPort) poll(watched bool) bool {
	if !watched {
		u.background.polls.Add(1)
	}
	if !u.reading.TryLock() {
		return true // the other reader may have found something
	}
	if u.misses > yieldAfter {
		// Yield before the read rather than after it: if the peer sends and then closes, the program sees the packets first.
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

// othersEvery is the maximum number of reads of a goroutine on its own port between reads of other ports.
const othersEvery = 8

// spinLimiter limits the goroutines of a link that spin, reading their ports repeatedly. If every port's goroutine
// did, a small machine would have no processor left for the senders, and a sleeping goroutine would wake late. So at
// most half as many spin as there are processors. Each of them also reads the ports of goroutines that do not spin and
// pause meanwhile.
//
// NICs never wait for each other: the port of a busy NIC is skipped. A NIC that may wait for a device or a neighbor
// while it serves packets (udpNIC.mayBlock) is exempt: its goroutine always spins, and no other goroutine reads its
// ports.
type spinLimiter struct {
	// limit is the maximum number of spinning goroutines, at least 1.
	limit int32
	// active is their current number.
	active atomic.Int32
	// ports holds the ports with QPs. The slice is replaced, never modified.
	ports atomic.Pointer[[]*udpPort]
}

func (w *spinLimiter) init() {
	w.limit = int32(max(runtime.GOMAXPROCS(0)/2, 1))
	w.ports.Store(new([]*udpPort))
}

// setUsed records whether a port has QPs. The link's mu is held.
func (w *spinLimiter) setUsed(u *udpPort, used bool) {
	ports := slices.DeleteFunc(slices.Clone(*w.ports.Load()), func(p *udpPort) bool { return p == u })
	if used {
		ports = append(ports, u)
	}
	w.ports.Store(&ports)
}

// acquire reports whether u's goroutine may spin, or already does.
func (w *spinLimiter) acquire(u *udpPort) bool {
	if u.udpNIC.mayBlock.Load() {
		w.release(u)
		return true
	}
	if u.background.spinning.Load() {
		return true
	}
	for {
		n := w.active.Load()
		if n >= w.limit {
			return false
		}
		if w.active.CompareAndSwap(n, n+1) {
			u.background.spinning.Store(true)
			return true
		}
	}
}

// release makes u's goroutine stop spinning, and wakes the goroutines waiting to spin.
func (w *spinLimiter) release(u *udpPort) {
	if !u.background.spinning.Load() {
		return
	}
	u.background.spinning.Store(false)
	w.active.Add(-1)
	for _, o := range *w.ports.Load() {
		if o.background.waiting.Load() {
			o.background.wake()
		}
	}
}

// pause pauses u's goroutine until it may spin. It returns the reason for resuming.
func (w *spinLimiter) pause(u *udpPort, pause *time.Timer) wakeReason {
	u.background.waiting.Store(true)
	defer u.background.waiting.Store(false)
	if w.acquire(u) { // another goroutine stopped before it could see waiting
		return pauseOver
	}
	return u.background.pause(pause)
}

// pollOthers reads the ports of goroutines that do not spin, on u's goroutine.
func (w *spinLimiter) pollOthers(u *udpPort) (s pollResult) {
	for _, o := range *w.ports.Load() {
		if o == u || o.background.spinning.Load() || o.udpNIC.mayBlock.Load() || !o.reading.TryLock() {
			continue
		}
		if polls := o.background.polls.Load(); polls != o.seen {
			o.seen = polls // the program reads this port
		} else if c := o.nic.core; c.mu.TryLock() {
			s.add(o.result(o.readLocked()))
			c.mu.Unlock()
		}
		o.reading.Unlock()
	}
	return s
}

// result describes the last read. The port's reading is held.
func (u *udpPort) result(some bool) (s pollResult) {
	s.served = some
	s.stream = u.batch >= streamBytes
	s.moreSoon = s.served && s.stream && u.midway && u.reader.Drained() && u.udpNIC.link.cfg.Spin >= midPause
	return s
}
