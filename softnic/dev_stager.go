package softnic

import (
	"ibverbx/verbs"
)

const (
	// stagingBufferSize is the size of a staging buffer in bytes. Copies of that size reach most of a GPU's rate, and
	// a few of them per QP keep wire and copy engine busy.
	stagingBufferSize = 256 << 10
	// maxCopies limits the copies of a batch.
	maxCopies = 1024
	// maxExtents limits the extents of a batch.
	maxExtents = 512
	// defaultStaging is the default of Config.Staging.
	defaultStaging = 32 << 20
	// minStaging is the minimum of Config.Staging.
	minStaging = 4 * stagingBufferSize
	// maxLanding limits the landing batches that are copied while the next one still has space for packets.
	maxLanding = 2
)

// stager holds the staging buffers for one device with registered memory, and two goroutines that copy between them
// and the device. A NIC on a link to other processes has one per device. Packets are sent from fetched buffers, and
// received into landing buffers. The core's lock guards the stager, except for its copiers.
type stager struct {
	nic    *NIC
	device verbs.MemoryDevice
	// users is the number of regions on the device.
	users int

	fetcher, lander copier
	// report wakes settleLoop after a copy.
	report chan struct{}
	stop   chan struct{}

	// outgoing holds the buffers of prefetchers, incoming those of landings.
	outgoing, incoming bufferPool
	// open is the landing batch that receives the next data, or nil.
	open *stagedBatch
	// landing and fetching count the batches submitted and not collected.
	landing, fetching int
	// waiting holds the QPs that wait for an outgoing buffer.
	waiting workList
	// fetches counts fetched batches.
	fetches uint64
	// spare holds batches without a buffer.
	spare []*stagedBatch
	// collected is the space for the batches that the copiers have finished.
	collected [2][]*stagedBatch
}

// bufferPool allocates buffers on demand and keeps them.
type bufferPool struct {
	all, idle []*stagingBuffer
	limit     int
}

// get returns a buffer, nil if all are in use.
func (p *bufferPool) get(device verbs.MemoryDevice) *stagingBuffer {
	if n := len(p.idle); n > 0 {
		b := p.idle[n-1]
		p.idle = p.idle[:n-1]
		return b
	}
	if len(p.all) == p.limit {
		return nil
	}
	mem, err := verbs.AllocMemory(stagingBufferSize, nil)
	if err != nil {
		return nil
	}
	b := &stagingBuffer{mem: mem}
	if unpin, err := device.PinHost(mem); err == nil { // else copies are slower
		b.unpin = unpin
	}
	p.all = append(p.all, b)
	return b
}

// free releases the memory of all buffers, except memory that the device may still access.
func (p *bufferPool) free() {
	for _, b := range p.all {
		if b.unpin != nil {
			_ = b.unpin() // of a lost device it fails, and unpins
		}
		_ = b.mem.Free() // refused while it is pinned
	}
	p.all, p.idle = nil, nil
}

// stagerFor returns the stager for a device, with one more user. It returns nil for a link within one process, where
// calls copy directly.
func (n *NIC) stagerFor(device verbs.MemoryDevice) *stager {
	c := n.core
	if device == nil || !c.distant() {
		return nil
	}
	for _, d := range c.stagers {
		if d.device == device {
			d.users++
			return d
		}
	}
	half := n.cfg.Staging / 2 / stagingBufferSize
	d := &stager{nic: n, device: device, users: 1, report: make(chan struct{}, 1), stop: make(chan struct{})}
	d.outgoing.limit, d.incoming.limit = half, half
	d.waiting.bit = onStager
	d.fetcher.init()
	d.lander.init()
	d.start()
	c.stagers = append(c.stagers, d)
	if c.udpNIC != nil {
		c.udpNIC.mayBlock.Store(true)
	}
	c.devices++
	return d
}

// deregister is called for each deregistered region. After it returns, no copy uses the region. The last call stops
// the stager.
func (d *stager) deregister() {
	d.submitOpen(true)
	d.lander.drain()
	d.fetcher.drain()
	d.notify()
	if d.users--; d.users > 0 {
		return
	}
	d.collect()
	for _, b := range d.outgoing.all {
		if b.batch != nil && b.batch.prefetcher != nil {
			b.batch.prefetcher.evict(b.batch)
		}
	}
	c := d.nic.core
	for i, o := range c.stagers {
		if o == d {
			c.stagers = append(c.stagers[:i:i], c.stagers[i+1:]...)
			break
		}
	}
	d.wakeWaiting()
	close(d.stop)
	for _, b := range c.neighbors {
		b.files.closeOn(d.device)
	}
	d.outgoing.free()
	d.incoming.free()
}

// hasCopied reports whether copied batches are ready to be collected.
func (d *stager) hasCopied() bool { return d.fetcher.ready.Load() != 0 || d.lander.ready.Load() != 0 }

// stagers are a NIC's stagers, one per device.
type stagers []*stager

// hasCopied reports whether settle must collect batches of any device.
func (l stagers) hasCopied() bool {
	for _, d := range l {
		if d.hasCopied() {
			return true
		}
	}
	return false
}

// copying reports whether any batch is being copied.
func (l stagers) copying() bool {
	for _, d := range l {
		if d.landing+d.fetching > 0 {
			return true
		}
	}
	return false
}

// collect schedules the QPs whose data has been fetched, and advances those whose data has landed.
func (d *stager) collect() {
	if d.fetcher.ready.Load() != 0 {
		d.collected[0] = d.fetcher.takeDone(d.collected[0])
		for _, g := range d.collected[0] {
			d.fetching--
			g.fetched, g.age = true, d.fetches
			d.fetches++
			if g.prefetcher == nil {
				d.recycle(g)
			} else {
				d.nic.core.lists.tx.push(g.prefetcher.q)
			}
		}
		d.wakeWaiting() // after the QPs scheduled above, whose unsent data can be reclaimed
	}
	if d.lander.ready.Load() != 0 {
		d.collected[1] = d.lander.takeDone(d.collected[1])
		for _, g := range d.collected[1] {
			d.landing--
			g.landed()
			d.recycle(g)
		}
	}
}

// submitOpen submits the open landing batch if the copier is nearly idle, or if force is set.
func (d *stager) submitOpen(force bool) {
	if d.open != nil && (force || d.landing < maxLanding) {
		d.lander.submit(d.open)
		d.landing++
		d.open = nil
	}
}

// newBatch returns an empty batch for a buffer, nil for a nil buffer.
func (d *stager) newBatch(b *stagingBuffer) *stagedBatch {
	if b == nil {
		return nil
	}
	n := len(d.spare)
	if n == 0 {
		return &stagedBatch{stager: d, buffer: b}
	}
	g := d.spare[n-1]
	d.spare = d.spare[:n-1]
	g.buffer = b
	return g
}

// recycle returns an unused batch and its buffer.
func (d *stager) recycle(g *stagedBatch) {
	if b := g.buffer; b != nil {
		pool := &d.incoming
		if b.batch != nil {
			b.batch, pool = nil, &d.outgoing
		}
		if !g.stuck {
			pool.idle = append(pool.idle, b)
		}
	}
	clear(g.copies)
	clear(g.extents)
	clear(g.landings)
	*g = stagedBatch{stager: d, copies: g.copies[:0], extents: g.extents[:0], landings: g.landings[:0]}
	d.spare = append(d.spare, g)
	d.wakeWaiting()
}

// wakeWaiting schedules the QPs that wait for a buffer. QPs that do not get one wait again.
func (d *stager) wakeWaiting() {
	for q := d.waiting.pop(); q != nil; q = d.waiting.pop() {
		d.nic.core.lists.tx.push(q)
	}
}

// landingBatch returns a landing batch with free space. It may wait for copies. It returns nil if failed copies may
// still use all buffers.
func (d *stager) landingBatch() *stagedBatch {
	if g := d.open; g != nil && (g.used == stagingBufferSize || len(g.copies) == maxCopies) {
		d.submitOpen(true)
	}
	if d.open == nil {
		d.open = d.newBatch(d.incoming.get(d.device))
	}
	if d.open == nil {
		d.lander.drain()
		d.notify()
		d.reclaimLanded()
		d.open = d.newBatch(d.incoming.get(d.device))
	}
	return d.open
}

// reclaimLanded takes the buffers of copied landings before they are collected. It leaves the rest to collect, because
// a QP may be in the middle of a packet.
func (d *stager) reclaimLanded() {
	d.lander.mu.Lock()
	defer d.lander.mu.Unlock()
	for _, g := range d.lander.done {
		if g.buffer != nil && !g.stuck {
			d.incoming.idle = append(d.incoming.idle, g.buffer)
			g.buffer = nil
		}
	}
}
