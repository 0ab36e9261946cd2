package softnic

import (
	"errors"
	"sync"
	"sync/atomic"

	"ibverbx/verbs"
)

// buffer is pinned host memory between packets and a device.
type buffer struct {
	mem   *verbs.Memory
	unpin func() error
	// load is the cargo that was fetched into the buffer and that a feed may still need, nil if there is none.
	load *cargo
}

// cargo is a buffer, and copies between it and a device. It belongs to a copier from submit on, until it is taken.
type cargo struct {
	depot *depot
	// buffer is nil once the bytes of a landing have been copied and others needed the buffer.
	buffer *buffer
	// used is how many bytes of the buffer have been filled, or will be.
	used   int
	copies []verbs.DeviceCopy
	// submitted says that the copier has the cargo, or has had it.
	submitted bool
	// failed says that the device refused copies.
	failed bool
	// stuck says that copies which failed may still be under way. The buffer is not used again.
	stuck bool

	// The fields below are those of bytes that a feed fetches.

	// feed is nil if the bytes are not needed any more.
	feed *feed
	// extents say where in the buffer the bytes of which requests are, in the order in which they are sent.
	extents []extent
	// first is the first of extents that has not been sent completely.
	first int
	// fetched says that the copies have been done, or have failed.
	fetched bool
	// age orders fetched cargoes by the time at which they were.
	age uint64

	// parts are the QPs whose bytes land with the cargo.
	parts []partRef
}

// add queues a copy of n bytes between the next ones of the buffer and addr on the device, and returns where in the buffer they are.
// toDevice is its direction, the same for all copies of a cargo.
func (g *cargo) add(addr uint64, n int, toDevice bool) []byte {
	host := g.buffer.mem.Bytes()[g.used:][:n]
	g.used += n
	if k := len(g.copies); k > 0 && !g.splits() {
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

// splits reports whether the next copy begins a part, and is therefore not joined with the last one.
func (g *cargo) splits() bool {
	return len(g.parts) > 0 && g.parts[len(g.parts)-1].from == len(g.copies)
}

// run does the copies. If they fail, those of each QP are tried by themselves: one with memory that its owner has freed must
// not end the others. A device that then waits for all copies, or is lost, does not use the buffer any more. One that does neither
// may do so at any time, and keeps the buffer.
func (g *cargo) run() {
	device := g.depot.device
	if device.Copy(g.copies) == nil {
		return
	}
	g.failed = true
	for i := range g.parts {
		end := len(g.copies)
		if i+1 < len(g.parts) {
			end = g.parts[i+1].from
		}
		p := &g.parts[i]
		p.failed = len(g.parts) == 1 || device.Copy(g.copies[p.from:end]) != nil
	}
	err := device.Copy(nil)
	g.stuck = err != nil && !errors.Is(err, verbs.ErrDeviceFatal)
}

// copier copies cargoes one after the other, in the order in which they were submitted. Its goroutine does it, without the lock of the
// core, so packets travel at the same time.
type copier struct {
	// copying is held while a cargo is copied. The core's lock may be held while it is taken, but not the other way round.
	copying sync.Mutex
	// ready is the length of done.
	ready atomic.Int32
	wake  chan struct{}

	// mu guards the fields below.
	mu    sync.Mutex
	queue []*cargo
	done  []*cargo
}

func (c *copier) init() { c.wake = make(chan struct{}, 1) }

// submit gives a cargo to the copier.
func (c *copier) submit(g *cargo) {
	g.submitted = true
	c.mu.Lock()
	c.queue = append(c.queue, g)
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// next copies the oldest cargo. It reports false if there is none. Then all of them have been copied.
func (c *copier) next() bool {
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

// drain returns when everything that was submitted has been copied.
func (c *copier) drain() {
	for c.next() {
	}
}

// take returns the cargoes that have been copied, in space whose cargoes are not needed any more.
func (c *copier) take(space []*cargo) []*cargo {
	clear(space)
	c.mu.Lock()
	done := c.done
	c.done = space[:0]
	c.ready.Store(0)
	c.mu.Unlock()
	return done
}

// run copies until stop, and reports each cargo.
func (c *copier) run(stop <-chan struct{}, report chan<- struct{}) {
	for {
		select {
		case <-c.wake:
		case <-stop:
			return
		}
		for c.next() {
			select {
			case report <- struct{}{}:
			default:
			}
		}
	}
}

// remind makes tell look for cargoes that were copied without the goroutines.
func (d *depot) remind() {
	select {
	case d.report <- struct{}{}:
	default:
	}
}

// start starts the goroutines of a depot. There is none on virtual time, because links to other processes have none.
func (d *depot) start() {
	go d.fetcher.run(d.stop, d.report)
	go d.lander.run(d.stop, d.report)
	go d.tell()
}

// tell settles the core when cargoes have been copied and no call does.
func (d *depot) tell() {
	for {
		select {
		case <-d.report:
		case <-d.stop:
			return
		}
		if d.arrived() {
			c := d.nic.core
			c.mu.Lock()
			c.settle()
			c.mu.Unlock()
		}
	}
}
