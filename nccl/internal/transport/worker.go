package transport

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// MaxWorkers is the maximum number of workers.
	MaxWorkers = 4
	// restTime is the idle time before a worker sleeps.
	restTime = 200 * time.Microsecond
	// waitTime replaces restTime while requests are outstanding.
	waitTime = 5 * time.Millisecond
	// missesPerClock is the number of turns without progress between two looks at the clock.
	missesPerClock = 32
	// turnsPerYield is the number of turns between two calls of runtime.Gosched if every worker has a processor. Each call may move the worker
	// to another core, whose caches are cold.
	turnsPerYield = 1024
)

// worker is a goroutine that serves one part of each Shard on its own core: it encrypts, sends, receives and decrypts while NCCL's threads
// only submit requests and read results. It sleeps without traffic. NCCL's threads poll meanwhile, and wake it.
type worker struct {
	number uint32
	// runs is 1 while the worker runs. C reads it.
	runs *atomic.Uint32
	// wake wakes the worker.
	wake chan struct{}

	// mu guards changes of parts, the served ones.
	mu    sync.Mutex
	parts atomic.Pointer[[]*part]
}

func newWorker(number int, runs *atomic.Uint32) *worker {
	w := &worker{number: uint32(number), runs: runs, wake: make(chan struct{}, 1)}
	w.parts.Store(new([]*part))
	go w.run()
	return w
}

// add makes the worker serve a part.
func (w *worker) add(p *part) {
	w.mu.Lock()
	parts := append(slices.Clip(*w.parts.Load()), p)
	w.parts.Store(&parts)
	w.mu.Unlock()
}

// remove makes the worker forget a part.
func (w *worker) remove(p *part) {
	w.mu.Lock()
	parts := slices.DeleteFunc(slices.Clone(*w.parts.Load()), func(other *part) bool { return other == p })
	w.parts.Store(&parts)
	w.mu.Unlock()
}

// running reports whether the worker polls.
func (w *worker) running() bool { return w.runs.Load() != 0 }

// rouse makes the worker run. It never blocks.
func (w *worker) rouse() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *worker) run() {
	for range w.wake {
		w.runs.Store(1)
		w.serve()
	}
}

// serve polls until there is no traffic. It resets runs before it looks at the inboxes for the last time, and threads that submit requests
// look at runs afterwards. So no request is missed.
func (w *worker) serve() {
	var since time.Time // the first look at the clock without progress
	perYield := 1
	if runtime.GOMAXPROCS(0) > MaxWorkers {
		perYield = turnsPerYield
	}
	for turns, misses := 1, 0; ; turns++ {
		moved := false
		for _, p := range *w.parts.Load() {
			p.mu.Lock()
			moved = p.turn() || moved
			p.mu.Unlock()
		}
		if turns%perYield == 0 {
			runtime.Gosched()
		}
		if moved {
			misses = 0
			continue
		}
		if misses++; misses%missesPerClock != 0 {
			continue
		}
		now := time.Now()
		if misses == missesPerClock {
			since = now
		}
		if idle := now.Sub(since); idle < restTime || idle < waitTime && w.any((*part).waits) {
			continue
		}
		w.runs.Store(0)
		if !w.any(func(p *part) bool { return p.inbox.some.Load() }) {
			return
		}
		w.runs.Store(1)
		misses = 0
	}
}

// any reports whether f is true for a part.
func (w *worker) any(f func(*part) bool) bool { return slices.ContainsFunc(*w.parts.Load(), f) }

// inbox holds the Comms of a part with submitted requests.
type inbox struct {
	mu sync.Mutex
	// some is set while comms is not empty.
	some  atomic.Bool
	comms []*Comm
	// taken was the previous comms. The lock of the part guards it.
	taken []*Comm
}

// put adds a Comm. The lock is held.
func (in *inbox) put(c *Comm) {
	if !c.queue.listed {
		c.queue.listed = true
		in.comms = append(in.comms, c)
		in.some.Store(true)
	}
}

// submissions is a queue of requests for a worker.
type submissions struct {
	// listed is set while the Comm is in the inbox. The inbox's lock guards it.
	listed bool
	// next is the number of the next submission, and posted the number of the oldest one not yet posted. The inbox's lock guards changes of
	// next, and the lock of the part changes of posted.
	next, posted atomic.Uint32
	ring         [Depth]submission
}

// submission is a request that is not yet posted: the parameters of Comm.Send or Comm.Recv.
type submission struct {
	addr, size uint64
	region     *Region
	request    int
}

// request posts a request, or submits it to the worker. A submitted request that cannot be posted completes with the error.
func (c *Comm) request(addr, size uint64, r *Region, i int) Result {
	w := c.part.worker
	if w == nil {
		c.part.mu.Lock()
		res := c.post(addr, size, r, i)
		c.part.mu.Unlock()
		return res
	}
	res := c.submit(addr, size, r, i)
	if res == OK && !w.running() {
		if c.part.mu.TryLock() { // otherwise the worker does it
			c.part.empty()
			c.part.mu.Unlock()
		}
		w.rouse()
	}
	return res
}

func (c *Comm) submit(addr, size uint64, r *Region, i int) Result {
	if res := Result(c.result.Load()); res != OK {
		return res
	}
	if uint(i) >= Depth {
		return InternalError
	}
	q, in, res := &c.queue, &c.part.inbox, Again
	in.mu.Lock()
	next := q.next.Load()
	if next-q.posted.Load() < Depth && (!c.sends || next != c.granted.Load()) {
		q.ring[next%Depth] = submission{addr, size, r, i}
		q.next.Store(next + 1)
		in.put(c)
		res = OK
	}
	in.mu.Unlock()
	return res
}

// empty posts the requests in the inbox, and reports whether there were any. The lock is held.
func (p *part) empty() (moved bool) {
	in := &p.inbox
	in.mu.Lock()
	in.comms, in.taken = in.taken[:0], in.comms
	in.some.Store(false)
	for _, c := range in.taken {
		c.queue.listed = false
	}
	in.mu.Unlock()
	for i, c := range in.taken {
		in.taken[i] = nil
		if moved = c.postAll() || moved; c.queue.posted.Load() != c.queue.next.Load() {
			in.mu.Lock()
			in.put(c) // a queue is full
			in.mu.Unlock()
		}
	}
	return moved
}

// postAll posts the submitted requests that fit the queues, and reports whether it has posted any. The lock of the part is held.
func (c *Comm) postAll() (moved bool) {
	q := &c.queue
	for n := q.posted.Load(); n != q.next.Load(); n++ {
		s := &q.ring[n%Depth]
		res := c.post(s.addr, s.size, s.region, s.request)
		if res == Again {
			return moved
		}
		if res != OK && c.words != nil {
			c.words.Requests[s.request].finish(res, 0)
		}
		s.region = nil
		q.posted.Store(n + 1)
		moved = true
	}
	return moved
}
