package softnic

import (
	"runtime"
	"sync"
	"time"

	"ibverbx/internal/shm"
	"ibverbx/internal/udp"
	"ibverbx/verbs"
)

// shmReader is the reading side of a ShmLink.
type shmReader struct {
	// The core's lock guards misses.
	// misses counts empty polls since the last packet.
	misses int

	background backgroundReader // reads packets
	// busy is ShmLink.busy. A method value per sleep would be an allocation.
	busy func() bool
	// watching is the goroutine that serves the socket.
	watching sync.WaitGroup
}

const (
	// shmHello is how long the peer may take for its first message.
	shmHello = 10 * time.Second
	// shmSpin is how long the goroutine looks for more packets before it sleeps.
	shmSpin = 20 * time.Microsecond
	// shmYield is how many polls may find nothing before the program yields its processor.
	shmYield = 1000
	// shmBatch is the maximum number of entries served before the peer may reuse them.
	shmBatch = 64
	// shmLazy is the number of served entries at which they are released. A waiting peer must find enough free slots: see room.
	shmLazy = 32
)

// start starts the goroutines of the link.
func (l *ShmLink) start() {
	l.ends.busy = l.busy
	l.ends.background.start(l, shmSpin)
	l.ends.watching.Go(l.watch)
}

// close ends the goroutines and unmaps everything. The core's lock must not be held, and the NIC is closed.
func (l *ShmLink) close() error {
	a := &l.ends.background
	close(a.stop)
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.stopped.Wait()
	}()
	for ended := false; !ended; { // the goroutine may be just about to sleep
		l.ring.bell.Disturb()
		select {
		case <-done:
			ended = true
		case <-time.After(time.Millisecond):
		}
	}
	err := l.near.conn.Close()
	if l.near.gone.Load() {
		err = nil // listen has closed it
	}
	l.ends.watching.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.near.unmap()
	return err
}

// look implements source. A fresh look also serves what a polling program has left, such as deferred acknowledgements.
func (l *ShmLink) pollOnce(fresh bool) pollResult {
	return pollResult{served: (fresh || l.ring.reader.Ready()) && l.read()}
}

// share implements source. The ring has one reader.
func (l *ShmLink) shareWork(s pollResult, _ int) (pollResult, bool) { return s, true }

// stayAway implements source.
func (l *ShmLink) pause(pause *time.Timer) wakeReason { return l.ends.background.pause(pause) }

// rest implements source.
func (l *ShmLink) stopSpinning() {}

// sleep implements source.
func (l *ShmLink) sleep() bool {
	l.ring.bell.Sleep(l.ends.busy)
	return true
}

// busy reports whether the link's goroutine must not sleep.
func (l *ShmLink) busy() bool {
	return l.ends.background.stopping() || l.ring.reader.Ready() || l.read()
}

// read serves packets and reports whether there were any.
func (l *ShmLink) read() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.near.nic.closed && l.drain()
}

// poll serves packets for a program that has found its CQ empty, and reports whether there were any.
// watched says that the program will sleep rather than poll again. The core's lock is held. poll may
// release it for a while.
func (l *ShmLink) poll(watched bool) bool {
	if l.near.nic.closed {
		return false
	}
	r := &l.ends
	if l.ring.reader.Unread() {
		r.misses = 0
		l.ring.take()
		// Acknowledgements alone can wait for the next call, which perhaps has something better for the peer.
		if l.ring.dirty || l.lists.busy() || len(l.stagers) > 0 {
			l.settle()
		}
		return true
	}
	l.drain()
	if !watched {
		r.background.notePoll()
	}
	if r.misses++; r.misses%shmYield == 0 {
		l.mu.Unlock()
		runtime.Gosched()
		udp.Yield()
		l.mu.Lock()
	}
	return false
}

// awaited makes the goroutine read: the program is about to sleep. The core's lock is held.
func (l *ShmLink) awaited() {
	l.drain()
	l.ends.background.wake()
}

// drain serves the packets that are there, some at a time, and reports whether there were any. The core's
// lock is held.
func (l *ShmLink) drain() bool {
	ready := l.ring.reader.Unread()
	if ready || !l.near.nic.waiting.empty() || !l.lists.acks.empty() {
		l.ring.take()
		l.settle()
	}
	l.ring.release(1)
	l.flush()
	return ready
}

// idle is the short way of poll: it reports whether the link needs nothing from a program whose CQ is empty. An empty poll takes
// 34 ns instead of 45 (BenchmarkShmEmptyPoll, Cascade Lake). The core's lock is held.
func (l *ShmLink) idle(watched bool) bool {
	r := &l.ends
	if l.near.nic.closed || l.ring.reader.Unread() || watched || r.misses%shmYield == shmYield-1 || !l.near.nic.waiting.empty() || !l.lists.acks.empty() ||
		!l.lists.later.empty() || len(l.stagers) > 0 {
		return false
	}
	r.misses++
	l.ring.release(1)
	l.flush()
	r.background.notePoll()
	return true
}

// expect waits for the first message of the peer.
func (b *neighbor) expect() (m shm.Message, fd int, err error) {
	if err = b.conn.SetReadDeadline(time.Now().Add(shmHello)); err != nil {
		return m, -1, err
	}
	if m, fd, err = b.conn.Receive(); err != nil {
		return m, -1, err
	}
	return m, fd, b.conn.SetReadDeadline(time.Time{})
}

// watch serves the socket until the peer ends, and then ends what was under way.
func (l *ShmLink) watch() {
	l.near.listen()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.near.nic.closed {
		l.lost()
	}
}

// grace waits until the peer no longer touches memory under a grant that was just removed. That is the time of
// one chain of requests, or longer if the peer is stopped in the middle of one.
func (b *neighbor) grace() {
	for _, other := range b.nic.core.neighbors {
		other.leave() // a request that fails ends its QP; many sides may be waiting here
	}
	in := b.theirIn.Load()
	for spins := 0; in&1 == 1 && b.theirIn.Load() == in && !b.gone.Load(); spins++ {
		if spins < 1000 {
			runtime.Gosched()
		} else if time.Sleep(20 * time.Microsecond); b.process != nil && !b.process.Is() {
			return // a child that it forked may keep the socket open
		}
	}
}

// withdrawLimit is how long withdraw waits for a process whose end nobody reports.
const withdrawLimit = time.Second

// withdraw takes back all grants to a peer whose connection has ended. If its process still runs, it may be inside.
func (b *neighbor) withdraw() {
	if b.own == nil {
		return
	}
	for q := range b.nic.qps.all() {
		b.own.Grant(q.num).Store(0)
		b.withdrawCredit(q)
	}
	in := b.theirIn.Load()
	for end := time.Now().Add(withdrawLimit); in&1 == 1 && b.theirIn.Load() == in && time.Now().Before(end); {
		if time.Sleep(20 * time.Microsecond); b.process != nil && !b.process.Is() {
			return
		}
	}
}

// lost ends the requests to a peer that has ended, and takes the port down. What the peer had sent
// counts.
func (l *ShmLink) lost() {
	n := l.near.nic
	l.near.files.closeOn(nil)
	l.near.withdraw()
	for l.ring.reader.Unread() {
		l.ring.take()
		l.work()
	}
	for q := range n.qps.all() {
		if q.typ == verbs.RC && q.sqHead != q.sqTail && (q.state == verbs.StateRTS || q.state == verbs.StateSQD) && q.path.dgid == l.ring.from.sgid {
			q.failSend(verbs.StatusRetryExcErr)
		}
		l.lists.tx.push(q)
	}
	if n.portUp {
		n.portUp = false
		n.raise(verbs.Event{Type: verbs.EventPortErr, Port: 1})
	}
	l.settle()
}
