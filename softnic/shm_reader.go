package softnic

import (
	"runtime"
	"sync"
	"time"

	"ibverbx/internal/shm"
	"ibverbx/internal/udp"
	"ibverbx/verbs"
)

// shmBackground is the reading side of a ShmLink.
type shmBackground struct {
	// The core's lock guards misses.
	// misses counts empty polls since the last packet.
	misses int

	background backgroundReader // reads packets
	// busy is ShmLink.busy. A method value per sleep would be an allocation.
	busy func() bool
	// watching waits for the goroutine that serves the socket.
	watching sync.WaitGroup
}

const (
	// shmHello is the timeout for the peer's first message.
	shmHello = 10 * time.Second
	// shmSpin is the time that the goroutine spins before it sleeps.
	shmSpin = 20 * time.Microsecond
	// shmYield is the number of empty polls after which the program yields its processor.
	shmYield = 1000
	// shmBatch is the maximum number of entries served before the peer may reuse them.
	shmBatch = 64
	// shmLazy is the number of served entries at which they are released. A waiting peer must find enough free slots:
	// see room.
	shmLazy = 32
)

// start starts the link's goroutines.
func (l *ShmLink) start() {
	l.background.busy = l.busy
	l.background.background.start(l, shmSpin)
	l.background.watching.Go(l.watchPeer)
}

// close stops the goroutines and unmaps everything. The core's lock must not be held, and the NIC is closed.
func (l *ShmLink) close() error {
	a := &l.background.background
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
	err := l.peer.conn.Close()
	if l.peer.gone.Load() {
		err = nil // listen has closed it
	}
	l.background.watching.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.peer.unmap()
	return err
}

// pollOnce implements packetSource. A fresh call also serves what a polling program has left, such as deferred
// acknowledgements.
func (l *ShmLink) pollOnce(fresh bool) pollResult {
	return pollResult{served: (fresh || l.ring.reader.Ready()) && l.read()}
}

// shareWork implements packetSource. The ring has one reader.
func (l *ShmLink) shareWork(s pollResult, _ int) (pollResult, bool) { return s, true }

// pause implements packetSource.
func (l *ShmLink) pause(pause *time.Timer) wakeReason { return l.background.background.pause(pause) }

// stopSpinning implements packetSource.
func (l *ShmLink) stopSpinning() {}

// sleep implements packetSource.
func (l *ShmLink) sleep() bool {
	l.ring.bell.Sleep(l.background.busy)
	return true
}

// busy reports whether the link's goroutine must not sleep.
func (l *ShmLink) busy() bool {
	return l.background.background.stopping() || l.ring.reader.Ready() || l.read()
}

// read serves packets and reports whether there were any.
func (l *ShmLink) read() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.peer.nic.closed && l.drain()
}

// poll serves packets for a program that has found its CQ empty, and reports whether there were any. watched is set if
// the program will sleep rather than poll again. The core's lock is held; poll may release it for a while.
func (l *ShmLink) poll(watched bool) bool {
	if l.peer.nic.closed {
		return false
	}
	r := &l.background
	if l.ring.reader.Unread() {
		r.misses = 0
		l.ring.serveBatch()
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

// wakeReader makes the goroutine read, because the program is about to sleep. The core's lock is held.
func (l *ShmLink) wakeReader() {
	l.drain()
	l.background.background.wake()
}

// drain serves a batch of the available packets and reports whether there were any. The core's lock is held.
func (l *ShmLink) drain() bool {
	ready := l.ring.reader.Unread()
	if ready || !l.peer.nic.waiting.empty() || !l.lists.acks.empty() {
		l.ring.serveBatch()
		l.settle()
	}
	l.ring.release(1)
	l.ringBell()
	return ready
}

// idle is the fast path of poll: it reports whether the link needs nothing from a program whose CQ is empty. An empty
// poll takes 34 ns instead of 45 (BenchmarkShmEmptyPoll, Cascade Lake). The core's lock is held.
func (l *ShmLink) idle(watched bool) bool {
	r := &l.background
	if l.peer.nic.closed || l.ring.reader.Unread() || watched || r.misses%shmYield == shmYield-1 || !l.peer.nic.waiting.empty() || !l.lists.acks.empty() ||
		!l.lists.later.empty() || len(l.stagers) > 0 {
		return false
	}
	r.misses++
	l.ring.release(1)
	l.ringBell()
	r.background.notePoll()
	return true
}

// receiveHello waits for the peer's first message.
func (b *neighbor) receiveHello() (m shm.Message, fd int, err error) {
	if err = b.conn.SetReadDeadline(time.Now().Add(shmHello)); err != nil {
		return m, -1, err
	}
	if m, fd, err = b.conn.Receive(); err != nil {
		return m, -1, err
	}
	return m, fd, b.conn.SetReadDeadline(time.Time{})
}

// watchPeer serves the socket until the peer exits, and then fails outstanding requests.
func (l *ShmLink) watchPeer() {
	l.peer.listen()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.peer.nic.closed {
		l.peerLost()
	}
}

// grace waits until the peer no longer accesses memory under a grant that was just revoked. That takes one chain of
// requests, or longer if the peer is stopped in the middle of one.
func (b *neighbor) grace() {
	for _, other := range b.nic.core.neighbors {
		other.endAccess() // a request that fails ends its QP; many sides may be waiting here
	}
	in := b.peerEpoch.Load()
	for spins := 0; in&1 == 1 && b.peerEpoch.Load() == in && !b.gone.Load(); spins++ {
		if spins < 1000 {
			runtime.Gosched()
		} else if time.Sleep(20 * time.Microsecond); b.process != nil && !b.process.Is() {
			return // a child that it forked may keep the socket open
		}
	}
}

// withdrawLimit bounds the wait of withdraw for a process whose exit cannot be observed.
const withdrawLimit = time.Second

// withdraw revokes all grants of a disconnected peer. If its process still runs, it may be accessing memory.
func (b *neighbor) withdraw() {
	if b.own == nil {
		return
	}
	for q := range b.nic.qps.all() {
		b.own.Grant(q.num).Store(0)
		b.withdrawCredit(q)
	}
	in := b.peerEpoch.Load()
	for end := time.Now().Add(withdrawLimit); in&1 == 1 && b.peerEpoch.Load() == in && time.Now().Before(end); {
		if time.Sleep(20 * time.Microsecond); b.process != nil && !b.process.Is() {
			return
		}
	}
}

// peerLost fails the requests to an exited peer, and takes the port down. Everything that the peer had sent counts.
func (l *ShmLink) peerLost() {
	n := l.peer.nic
	l.peer.files.closeOn(nil)
	l.peer.withdraw()
	for l.ring.reader.Unread() {
		l.ring.serveBatch()
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
