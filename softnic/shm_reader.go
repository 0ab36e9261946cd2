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
	// misses counts empty polls since the last packet. The core's lock guards it.
	misses int

	background backgroundReader // reads packets
	// busy is ShmLink.busy as a method value, stored because creating one per sleep would allocate.
	busy func() bool
	// watching waits for the goroutine that serves the socket.
	watching sync.WaitGroup
}

const (
	// shmHelloTimeout is the timeout for the peer's first message.
	shmHelloTimeout = 10 * time.Second
	// shmSpin is the time that the goroutine polls for more packets before it sleeps.
	shmSpin = 20 * time.Microsecond
	// shmYieldAfter is the number of empty polls before the program yields its processor.
	shmYieldAfter = 1000
	// shmBatch is the maximum number of entries served before the peer may reuse them.
	shmBatch = 64
	// shmReleaseBatch is the number of served entries released together. It must leave enough free
	// slots for a waiting peer: see room.
	shmReleaseBatch = 32
)

// start starts the link's goroutines.
func (l *ShmLink) start() {
	l.background.busy = l.busy
	l.background.background.start(l, shmSpin)
	l.background.watching.Go(l.watchPeer)
}

// close stops the goroutines and unmaps all memory. The NIC is closed, and the caller must not hold the
// core's lock.
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
	l.neighbors = nil // later calls must not read the ring
	return err
}

// pollOnce implements packetSource. A fresh poll also completes work left by a polling program, such as deferred
// ACKs.
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

// read serves packets and reports whether it found any.
func (l *ShmLink) read() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.peer.nic.closed && l.drain()
}

// poll serves packets for a program that has found its CQ empty, and reports whether it found any.
// watched is set if the program will sleep rather than poll again. The caller holds the core's lock,
// which poll may release temporarily.
func (l *ShmLink) poll(watched bool) bool {
	if l.peer.nic.closed {
		return false
	}
	r := &l.background
	if l.ring.reader.Unread() {
		r.misses = 0
		l.ring.serveBatch()
		// ACKs alone can wait for the next call, which may also send data to the peer.
		if l.ring.dirty || l.lists.busy() || len(l.stagers) > 0 {
			l.settle()
		}
		return true
	}
	l.drain()
	if !watched {
		r.background.notePoll()
	}
	if r.misses++; r.misses%shmYieldAfter == 0 {
		l.mu.Unlock()
		runtime.Gosched()
		udp.Yield()
		l.mu.Lock()
	}
	return false
}

// wakeReader makes the goroutine read, because the program is about to sleep. The caller holds the core's
// lock.
func (l *ShmLink) wakeReader() {
	l.drain()
	l.background.background.wake()
}

// drain serves a batch of packets, and reports whether it found any. The caller holds the core's lock.
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

// idle is the fast path of poll: it reports whether the link requires no action by a program whose CQ
// is empty. It shortens an empty poll from 45 to 34 ns (BenchmarkShmEmptyPoll, Cascade Lake). The
// caller holds the core's lock.
func (l *ShmLink) idle(watched bool) bool {
	r := &l.background
	if l.peer.nic.closed || l.ring.reader.Unread() || watched || r.misses%shmYieldAfter == shmYieldAfter-1 || !l.peer.nic.waiting.empty() || !l.lists.acks.empty() ||
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
	if err = b.conn.SetReadDeadline(time.Now().Add(shmHelloTimeout)); err != nil {
		return m, -1, err
	}
	if m, fd, err = b.conn.Receive(); err != nil {
		return m, -1, err
	}
	return m, fd, b.conn.SetReadDeadline(time.Time{})
}

// watchPeer serves the socket until the peer exits, then fails the outstanding requests.
func (l *ShmLink) watchPeer() {
	l.peer.listen()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.peer.nic.closed {
		l.peerLost()
	}
}

// grace waits until the peer no longer accesses memory under a grant just revoked. This takes one chain
// of requests, or longer if the peer is stopped in the middle of one.
func (b *neighbor) grace() {
	for _, other := range b.nic.core.neighbors {
		other.endAccess() // this call may be inside an access; two sides in accesses would wait for each other
	}
	in := b.peerEpoch.Load()
	for spins := 0; in&1 == 1 && b.peerEpoch.Load() == in && !b.gone.Load(); spins++ {
		if spins < 1000 {
			runtime.Gosched()
		} else if time.Sleep(20 * time.Microsecond); b.process != nil && !b.process.Is() {
			return // the peer has exited, but a forked child may keep its socket open
		}
	}
}

// withdrawLimit bounds the wait for a process whose exit is not reported.
const withdrawLimit = time.Second

// withdraw revokes all grants to a peer whose connection has closed. A running peer may still be
// accessing memory.
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

// peerLost fails the requests to a peer that has exited, and takes the port down. Entries that the peer has
// already published are still served, but no more than fit the ring: it may have closed only its connection.
func (l *ShmLink) peerLost() {
	n := l.peer.nic
	l.peer.files.closeOn(nil)
	l.peer.withdraw()
	for left := shm.Slots; left > 0 && l.ring.reader.Unread(); left -= shmBatch {
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
