package node

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"ibverbx"
	"ibverbx/internal/clock"
	"ibverbx/internal/service"
	"ibverbx/internal/u32map"
	"ibverbx/verbs"
)

// receives is the number of notification receives per VirtualQP. Further notifications wait at the sender.
const receives = 64

// receiveBit marks the wr_id of a notification receive.
const receiveBit = 1 << 63

// Polling and sleep times of pollLoop.
const (
	// spinTime is the polling time without events while requests are outstanding.
	spinTime = 20 * time.Microsecond
	// helpedSleep is the sleep time while other goroutines drive the shard.
	helpedSleep = 50 * time.Microsecond
	// idleSleep is the maximum sleep otherwise. A completion wakes the poll loop earlier, and so does a goroutine that posts something with an
	// earlier deadline (unlock). With one second, the poll loops of 1,000 idle Nodes took more time than their keepalives (BenchmarkIdlePeers).
	idleSleep = time.Minute
	// pollEvery is the number of submitted operations per poll. A goroutine waiting for one polls anyway.
	pollEvery = 16
	// rounds limits the passes over the inbox before a goroutine leaves the rest to the poll loop.
	rounds = 8
)

// cancelation is a call of Cancel.
type cancelation struct {
	op   *service.Op
	peer *Peer
	// run is the operation's State.Runs at the time of the call.
	run uint64
}

// shard is a VirtualCQ and its users, driven by one goroutine at a time. A goroutine that submits
// an operation puts it into the inbox. If the lock is free, it acquires the lock, posts and polls;
// otherwise the lock's holder does so before leaving. The poll loop does the rest.
type shard struct {
	now   func() int64
	waker *verbs.Waker
	// peers is the number of Peers on the shard, at most capacity. The realm's lock guards peers.
	peers, capacity int
	pollers         sync.WaitGroup
	// failures counts failed polls.
	failures atomic.Uint64

	// inbox holds the submitted operations, newest first, linked by State.Next.
	inbox atomic.Pointer[service.Op]
	// cancels holds pending calls of Cancel. Its lock is used with and without the shard's.
	cancels struct {
		any atomic.Bool
		mu  sync.Mutex
		ops []cancelation
	}

	// mu guards everything below, and the queues.
	mu     sync.Mutex
	cq     *ibverbx.VirtualCQ
	closed bool
	// queues maps VirtualQP numbers to queues.
	queues u32map.Map[*queue]
	// ready holds the queues with fragments to post, linked by next.
	ready *queue
	// flight is the number of outstanding requests.
	flight int
	// posts counts the operations submitted since the last poll.
	posts int
	// armed is set when the next completion on any rail wakes the poll loop.
	armed bool
	// wakeAt is the wake-up time of an armed poll loop, armedDue the VirtualCQ's deadline when it was armed. woken is set once the loop was
	// woken earlier.
	wakeAt, armedDue int64
	woken            bool
	// helped counts the calls of postAndPoll by other goroutines than the poll loop.
	helped uint64
	wrs    [32]ibverbx.SendWR
	recvs  [receives]ibverbx.RecvWR
	wcs    [64]ibverbx.WC
	events [8]ibverbx.Event
}

// newShard returns a shard with a VirtualCQ of the given depth, and starts its poll loop.
func newShard(rails *ibverbx.Rails, depth int) (*shard, error) {
	s := &shard{now: clock.Monotonic(), waker: verbs.NewWaker()}
	var err error
	if s.cq, err = rails.NewCQ(ibverbx.CQConfig{Depth: depth, Waker: s.waker}); err != nil {
		return nil, err
	}
	for i := range s.recvs {
		s.recvs[i].WRID = receiveBit
	}
	s.pollers.Go(s.pollLoop)
	return s, nil
}

// close stops the poll loop and closes the VirtualCQ. The VirtualQPs must be closed.
func (s *shard) close() error {
	s.do(func() { s.closed = true })
	s.waker.Wake()
	s.pollers.Wait()
	return s.cq.Close()
}

// withCQ implements peer.Config.SharedCQ.
func (s *shard) withCQ(step func(*ibverbx.VirtualCQ) error) error {
	s.mu.Lock()
	defer s.unlock()
	return step(s.cq)
}

// do calls f with the lock held.
func (s *shard) do(f func()) {
	s.mu.Lock()
	defer s.unlock()
	f()
}

// hasWork reports whether the inbox or cancels contain work.
func (s *shard) hasWork() bool { return s.inbox.Load() != nil || s.cancels.any.Load() }

// unlock posts the pending operations and releases the lock. Then it processes the work that other goroutines left to the lock's holder.
func (s *shard) unlock() {
	s.post()
	s.unlockOnly()
	for range rounds {
		if !s.hasWork() || !s.mu.TryLock() {
			return
		}
		s.postAndPoll()
		s.unlockOnly()
	}
	s.waker.Wake()
}

// unlockOnly releases the lock. It wakes an armed poll loop if the VirtualCQ must be polled earlier than when it was armed.
func (s *shard) unlockOnly() {
	rouse := s.armed && !s.woken && s.cq.Due() < s.armedDue
	s.woken = s.woken || rouse
	s.mu.Unlock()
	if rouse {
		s.waker.Wake()
	}
}

// submit puts an operation into the inbox and drives the shard, unless another goroutine does.
func (s *shard) submit(op *service.Op) {
	for {
		head := s.inbox.Load()
		stateOf(op).Next = head
		if s.inbox.CompareAndSwap(head, op) {
			break
		}
	}
	if !s.mu.TryLock() {
		return
	}
	s.helped++
	if s.posts++; s.posts >= pollEvery {
		s.postAndPoll()
	} else {
		s.takeInbox()
	}
	s.unlock()
}

// cancel makes the shard cancel an operation.
func (s *shard) cancel(c cancelation) {
	s.cancels.mu.Lock()
	s.cancels.ops = append(s.cancels.ops, c)
	s.cancels.any.Store(true)
	s.cancels.mu.Unlock()
	s.help()
}

// help drives the shard if no other goroutine does.
func (s *shard) help() bool {
	if !s.mu.TryLock() {
		return false
	}
	s.helped++
	s.postAndPoll()
	s.unlock()
	return true
}

// leave hands the shard to the poll loop. An armed poll loop keeps sleeping, unless the VirtualCQ must be polled before its wake-up time.
func (s *shard) leave() {
	if s.mu.TryLock() {
		s.takeInbox() // the caller's operation may be in the inbox, and Due covers only posted requests
		s.post()
		asleep := s.armed && s.wakeAt <= s.cq.Due()
		s.unlock()
		if asleep {
			return
		}
	}
	s.waker.Wake()
}

// postAndPoll posts the pending operations and polls once. It returns the number of events.
func (s *shard) postAndPoll() int {
	n := s.takeInbox()
	if s.closed {
		return n
	}
	s.post()
	n += s.poll()
	s.post()
	return n
}

// takeInbox moves operations from the inbox to their queues, oldest first, and then handles cancels. It reads cancels first, since a canceled
// operation enters the inbox before its Cancel.
func (s *shard) takeInbox() (n int) {
	cancels := s.takeCancels()
	if s.inbox.Load() != nil {
		var oldest *service.Op
		for op := s.inbox.Swap(nil); op != nil; n++ {
			next := stateOf(op).Next
			stateOf(op).Next, oldest = oldest, op
			op = next
		}
		for op := oldest; op != nil; {
			next := stateOf(op).Next
			stateOf(op).Owner.(*Peer).queue.add(op)
			op = next
		}
	}
	for _, c := range cancels {
		c.peer.queue.cancel(c)
	}
	return n
}

// takeCancels returns and clears the pending calls of Cancel.
func (s *shard) takeCancels() []cancelation {
	if !s.cancels.any.Load() {
		return nil
	}
	s.cancels.mu.Lock()
	defer s.cancels.mu.Unlock()
	ops := s.cancels.ops
	s.cancels.ops = nil
	s.cancels.any.Store(false)
	return ops
}

// post lets the ready queues post.
func (s *shard) post() {
	for s.ready != nil {
		q := s.ready
		s.ready, q.next, q.listed = q.next, nil, false
		q.post()
	}
}

// poll polls once and dispatches the completions.
func (s *shard) poll() int {
	s.posts = 0
	n, err := s.cq.Poll(s.wcs[:])
	if err != nil {
		s.failures.Add(1)
	}
	s.handle(n)
	return n
}

// handle dispatches n completions, and the events, to their queues.
func (s *shard) handle(n int) {
	for i := range s.wcs[:n] {
		wc := &s.wcs[i]
		q := s.queues.Find(wc.QP.Num())
		switch {
		case q == nil: // closing
		case wc.WRID&receiveBit != 0:
			q.received(wc)
		case q.settled:
		case wc.Status != verbs.StatusSuccess:
			q.failed(wc)
		default:
			q.complete(uint32(wc.WRID))
			q.schedule()
		}
	}
	for more := true; more; {
		k := s.cq.Events(s.events[:])
		for i := range s.events[:k] {
			if q := s.queues.Find(s.events[i].QP.Num()); q != nil {
				q.handleEvent(&s.events[i])
			}
		}
		more = k == len(s.events)
	}
}

// pollLoop drives the shard when no other goroutine does: it polls for a while, then arms the CQs and sleeps.
func (s *shard) pollLoop() {
	active, helped := s.now(), uint64(0)
	for {
		s.mu.Lock()
		s.armed, s.woken = false, false
		if s.closed {
			s.mu.Unlock()
			return
		}
		n := s.postAndPoll()
		now := s.now()
		if n > 0 {
			active = now
		}
		nap := time.Duration(0)
		switch {
		case s.flight > 0 && s.helped != helped:
			nap = helpedSleep
		case s.flight > 0 && now-active < int64(spinTime):
		default:
			nap = s.arm()
		}
		helped = s.helped
		s.unlock()
		if nap == 0 {
			runtime.Gosched()
			continue
		}
		_ = s.waker.Sleep(context.Background(), nap)
		active = s.now()
	}
}

// arm makes the next completion wake the poll loop, and sets armed. It returns the poll loop's maximum sleep, 0 after a completion. It posts
// before arming, so that the sleep respects the deadlines of those requests.
func (s *shard) arm() time.Duration {
	s.post()
	n, nap, err := s.cq.Arm(s.wcs[:])
	if err != nil {
		s.failures.Add(1)
	}
	s.armed, s.woken = err == nil, nap == 0
	nap = min(nap, idleSleep)
	s.wakeAt = s.now() + int64(nap)
	s.armedDue = min(s.cq.Due(), s.wakeAt)
	s.handle(n)
	s.post() // an event may have unblocked a queue
	return nap
}
