package softnic

import (
	"errors"
	"sync"
	"sync/atomic"

	"ibverbx/verbs"
)

// stagingBuffer is pinned host memory between packets and a device.
type stagingBuffer struct {
	mem   *verbs.Memory
	unpin func() error
	// batch is the batch fetched into the buffer, nil after the prefetcher has dropped it.
	batch *stagedBatch
}

// stagedBatch is a staging buffer and the copies between it and a device. It belongs to a copier from submit to
// takeDone.
type stagedBatch struct {
	stager *stager
	// buffer is nil if another batch needed it after the copies of a landing.
	buffer *stagingBuffer
	// used is the number of buffer bytes in use.
	used   int
	copies []verbs.DeviceCopy
	// submitted is set once the copier has received the batch.
	submitted bool
	// failed is set if the device refused copies.
	failed bool
	// stuck is set if failed copies may still be in progress. The buffer is not used again.
	stuck bool

	// The fields up to age are for fetched data.

	// prefetcher is the owner of fetched data, nil for a landing or if the data is no longer needed.
	prefetcher *prefetcher
	// extents locate the data of requests in the buffer, in sending order.
	extents []extent
	// first is the index of the first extent that has not been sent completely.
	first int
	// fetched is set once the copies have succeeded or failed.
	fetched bool
	// age orders batches by fetch time.
	age uint64

	// landings are the QPs whose data lands with the batch.
	landings []landingRef
}

// add queues a copy of n bytes between the next buffer bytes, which it returns, and addr on the device. All copies of
// a batch have the same direction.
func (g *stagedBatch) add(addr uint64, n int, toDevice bool) []byte {
	host := g.buffer.mem.Bytes()[g.used:][:n]
	g.used += n
	if k := len(g.copies); k > 0 && !g.startsLanding() {
		if last := &g.copies[k-1]; last.To+last.From+last.Len == addr { // one of the addresses is 0
			last.Host = last.Host[:last.Len+uint64(n)]
			last.Len += uint64(n)
			return host
		}
	}
	one := verbs.DeviceCopy{Host: host[:n:cap(host)], Len: uint64(n)}
	if toDevice {
		one.To = addr
	} else {
		one.From = addr
	}
	g.copies = append(g.copies, one)
	return host
}

// startsLanding reports whether the next copy is the first of a landing. It is then not merged with the previous copy.
func (g *stagedBatch) startsLanding() bool {
	return len(g.landings) > 0 && g.landings[len(g.landings)-1].from == len(g.copies)
}

// run executes the copies. If they fail, it retries each QP's copies separately, because memory freed by one owner
// must not fail the others. A device that then waits for all copies, or is lost, no longer uses the buffer. Otherwise
// the buffer stays with the device.
func (g *stagedBatch) run() {
	device := g.stager.device
	if device.Copy(g.copies) == nil {
		return
	}
	g.failed = true
	for i := range g.landings {
		end := len(g.copies)
		if i+1 < len(g.landings) {
			end = g.landings[i+1].from
		}
		p := &g.landings[i]
		p.failed = len(g.landings) == 1 || device.Copy(g.copies[p.from:end]) != nil
	}
	err := device.Copy(nil)
	g.stuck = err != nil && !errors.Is(err, verbs.ErrDeviceFatal)
}

// copier executes batches in submission order. Its goroutine does so without the core's lock, concurrently with packet
// processing.
type copier struct {
	// copying is held while a batch is copied. It may be locked under the core's lock, but not the other way round.
	copying sync.Mutex
	// ready is the length of done.
	ready atomic.Int32
	wake  chan struct{}

	// mu guards the fields below.
	mu    sync.Mutex
	queue []*stagedBatch
	done  []*stagedBatch
}

func (c *copier) init() { c.wake = make(chan struct{}, 1) }

// submit queues a batch.
func (c *copier) submit(g *stagedBatch) {
	g.submitted = true
	c.mu.Lock()
	c.queue = append(c.queue, g)
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// copyNext copies the oldest batch. It returns false once all batches have been copied.
func (c *copier) copyNext() bool {
	c.copying.Lock()
	defer c.copying.Unlock()
	c.mu.Lock()
	if len(c.queue) == 0 {
		c.mu.Unlock()
		return false
	}
	g := c.queue[0]
	k := copy(c.queue, c.queue[1:])
	c.queue[k] = nil
	c.queue = c.queue[:k]
	c.mu.Unlock()
	g.run()
	c.mu.Lock()
	c.done = append(c.done, g)
	c.ready.Store(int32(len(c.done)))
	c.mu.Unlock()
	return true
}

// drain returns after all submitted batches have been copied.
func (c *copier) drain() {
	for c.copyNext() {
	}
}

// takeDone returns the copied batches. It reuses space for the next ones.
func (c *copier) takeDone(space []*stagedBatch) []*stagedBatch {
	clear(space)
	c.mu.Lock()
	done := c.done
	c.done = space[:0]
	c.ready.Store(0)
	c.mu.Unlock()
	return done
}

// run copies batches until stop, and reports each one.
func (c *copier) run(stop <-chan struct{}, report chan<- struct{}) {
	for {
		select {
		case <-c.wake:
		case <-stop:
			return
		}
		for c.copyNext() {
			select {
			case report <- struct{}{}:
			default:
			}
		}
	}
}

// notify makes settleLoop check for batches that were copied outside the goroutines.
func (d *stager) notify() {
	select {
	case d.report <- struct{}{}:
	default:
	}
}

// start starts the stager's goroutines. It is never called in virtual time, whose links do not leave the process.
func (d *stager) start() {
	go d.fetcher.run(d.stop, d.report)
	go d.lander.run(d.stop, d.report)
	go d.settleLoop()
}

// settleLoop settles the core when batches have been copied while the program makes no calls.
func (d *stager) settleLoop() {
	for {
		select {
		case <-d.report:
		case <-d.stop:
			return
		}
		if d.hasCopied() {
			c := d.nic.core
			c.mu.Lock()
			c.settle()
			c.mu.Unlock()
		}
	}
}
