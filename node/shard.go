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
	"ibverbx/internal/table"
	"ibverbx/verbs"
)

// receives is how many notification receives a VirtualQP has posted. A peer that sends more waits.
const receives = 64

// receiveBit marks the wr_id of a notification receive.
const receiveBit = 1 << 63

// How long a keeper polls and sleeps.
const (
	// spinTime is how long it polls while requests are outstanding and nothing happens.
	spinTime = 20 * time.Microsecond
	// helpedSleep is how long it sleeps while other goroutines drive the shard.
	helpedSleep = 50 * time.Microsecond
	// idleSleep is its longest sleep otherwise. A completion wakes it earlier.
	idleSleep = time.Second
	// pollEvery is how many operations are submitted before one polls. A goroutine that waits for one polls anyway.
	pollEvery = 16
	// rounds is how often a goroutine takes what others have submitted before it leaves that to the keeper.
	rounds = 8
)

// cancelation is a call of Cancel.
type cancelation struct {
	op   *service.Op
	peer *Peer
	// run is State.Runs of the operation when it was called.
	run uint64
}

// shard is a VirtualCQ and those who use it, one goroutine at a time. A goroutine that submits an operation puts it into the inbox. If
// no other goroutine has the lock it takes the lock, posts and polls. If another one has it, that one does so before it
// is done with the shard. The keeper does the rest.
type shard struct {
	now   func() int64
	waker *verbs.Waker
	// peers is how many Peers are on the shard, at most room. The lock of the realm guards peers.
	peers, room int
	keeper      sync.WaitGroup
	// failures counts polls that failed.
	failures atomic.Uint64

	// inbox has the operations that were submitted, newest first, linked by State.Next.
	inbox atomic.Pointer[service.Op]
	// cancels has the calls of Cancel that are not handled. Its lock is taken with and without that of the shard.
	cancels struct {
		any atomic.Bool
		mu  sync.Mutex
		ops []cancelation
	}

	// mu guards everything below, and the queues.
	mu     sync.Mutex
	cq     *ibverbx.VirtualCQ
	closed bool
	// queues finds the queue of a VirtualQP by its number.
	queues table.Table[*queue]
	// ready has the queues with something to post, linked by next.
	ready *queue
	// flight is how many requests are outstanding.
	flight int
	// posts is how many operations were submitted since the last poll.
	posts int
	// armed means that the next completion on any rail wakes the keeper, if it is not awake.
	armed bool
	// wakes is when an armed keeper wakes up by itself.
	wakes int64
	// helped counts how often goroutines other than the keeper have driven the shard.
	helped uint64
	wrs    [32]ibverbx.SendWR
	recvs  [receives]ibverbx.RecvWR
	wcs    [64]ibverbx.WC
	events [8]ibverbx.Event
}

// newShard returns a shard with a VirtualCQ of a depth on rails, and starts its keeper.
func newShard(rails *ibverbx.Rails, depth int) (*shard, error) {
	s := &shard{now: clock.Monotonic(), waker: verbs.NewWaker()}
	var err error
	if s.cq, err = rails.NewCQ(ibverbx.CQConfig{Depth: depth, Waker: s.waker}); err != nil {
		return nil, err
	}
	for i := range s.recvs {
		s.recvs[i].WRID = receiveBit
	}
	s.keeper.Go(s.keep)
	return s, nil
}

// close ends the keeper and closes the VirtualCQ. The VirtualQPs must be closed.
func (s *shard) close() error {
	s.do(func() { s.closed = true })
	s.waker.Wake()
	s.keeper.Wait()
	return s.cq.Close()
}

// on is a peer.Config.SharedCQ.
func (s *shard) on(step func(*ibverbx.VirtualCQ) error) error {
	s.mu.Lock()
	defer s.unlock()
	return step(s.cq)
}

// do calls f with the lock.
func (s *shard) do(f func()) {
	s.mu.Lock()
	defer s.unlock()
	f()
}

// waiting reports whether there is something in the inbox.
func (s *shard) waiting() bool { return s.inbox.Load() != nil || s.cancels.any.Load() }

// unlock posts what is to be posted and gives the lock back. Then it does what others have left to this goroutine because it had the
// lock.
func (s *shard) unlock() {
	s.post()
	s.mu.Unlock()
	for range rounds {
		if !s.waiting() || !s.mu.TryLock() {
			return
		}
		s.turn()
		s.mu.Unlock()
	}
	s.waker.Wake()
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
		s.turn()
	} else {
		s.take()
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
	s.turn()
	s.unlock()
	return true
}

// leave makes the keeper drive the shard. A keeper that a completion wakes is not disturbed, unless the VirtualCQ must be polled before it wakes
// up by itself.
func (s *shard) leave() {
	if s.mu.TryLock() {
		s.take() // what the caller waits for may be in the inbox, and Due counts only what is posted
		s.post()
		asleep := s.armed && s.wakes <= s.cq.Due()
		s.unlock()
		if asleep {
			return
		}
	}
	s.waker.Wake()
}

// turn posts what is to be posted and polls once. It returns how much happened.
func (s *shard) turn() int {
	n := s.take()
	if s.closed {
		return n
	}
	s.post()
	n += s.poll()
	s.post()
	return n
}

// take gives the operations of the inbox to their queues, oldest first, and then cancels those that are to be canceled. It looks at the
// latter first: an operation whose Cancel is there is in the inbox, or was.
func (s *shard) take() (n int) {
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

// takeCancels returns the calls of Cancel that are not handled.
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

// post lets the queues post that have something to post.
func (s *shard) post() {
	for s.ready != nil {
		q := s.ready
		s.ready, q.next, q.listed = q.next, nil, false
		q.post()
	}
}

// poll takes completions and gives them to their queues.
func (s *shard) poll() int {
	s.posts = 0
	n, err := s.cq.Poll(s.wcs[:])
	if err != nil {
		s.failures.Add(1)
	}
	s.handle(n)
	return n
}

// handle gives n completions, and the events, to their queues.
func (s *shard) handle(n int) {
	for i := range s.wcs[:n] {
		wc := &s.wcs[i]
		q := s.queues.Find(wc.QP.Num())
		switch {
		case q == nil: // it is being closed
		case wc.WRID&receiveBit != 0:
			q.received(wc)
		case q.settled:
		case wc.Status != verbs.StatusSuccess:
			q.failed(wc)
		default:
			q.complete(uint32(wc.WRID))
			q.stir()
		}
	}
	for more := true; more; {
		k := s.cq.Events(s.events[:])
		for i := range s.events[:k] {
			if q := s.queues.Find(s.events[i].QP.Num()); q != nil {
				q.happened(&s.events[i])
			}
		}
		more = k == len(s.events)
	}
}

// keep is the keeper. It drives the shard while nobody else does: it polls for a while, then arms the CQs and sleeps.
func (s *shard) keep() {
	active, helped := s.now(), uint64(0)
	for {
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			return
		}
		s.armed = false
		n := s.turn()
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
		_ = s.waker.Sleep(context.Background(), nap) // its context never ends
		active = s.now()
	}
}

// arm makes the next completion wake the keeper, and sets armed. It returns the longest sleep of the keeper: 0 if there was a
// completion. It posts before it arms, so that the sleep respects the deadlines of these requests.
func (s *shard) arm() time.Duration {
	s.post()
	n, nap, err := s.cq.Arm(s.wcs[:])
	if err != nil {
		s.failures.Add(1)
	}
	s.armed = err == nil
	s.handle(n)
	s.post() // an event may have unblocked a queue
	nap = min(nap, idleSleep)
	s.wakes = s.now() + int64(nap)
	return nap
}
