package softnic

import (
	"ibverbx/verbs"
)

const (
	// cargoSize is the size of a staging buffer in bytes. Copies of that size reach most of a GPU's rate, and
	// a few of them per QP keep wire and copy engine busy.
	cargoSize = 256 << 10
	// maxCopies is how many copies a cargo has.
	maxCopies = 1024
	// maxExtents is how many pieces of memory a cargo has.
	maxExtents = 512
	// defaultStaging is Config.Staging if that is 0.
	defaultStaging = 32 << 20
	// minStaging is the least that Config.Staging can be, except 0.
	minStaging = 4 * cargoSize
	// maxLanding is how many landings are given to the copier while there is room for more packets in the next one.
	maxLanding = 2
)

// depot is what a NIC on a link to other processes has for a device with registered memory: staging buffers, and two goroutines that copy
// between them and the device. Packets are made from bytes that a feed has fetched, and land in the
// buffers. The core's lock guards it, except for its copiers.
type depot struct {
	nic    *NIC
	device verbs.MemoryDevice
	// users counts the regions on the device.
	users int

	fetcher, lander copier
	// report tells the reporter that a cargo has been copied.
	report chan struct{}
	stop   chan struct{}

	// outgoing are the buffers of feeds, incoming those of landings.
	outgoing, incoming bufferPool
	// open is the landing that takes the next bytes, nil if there is none.
	open *cargo
	// landing and fetching are how many cargoes the copiers have, or have done since the last reap.
	landing, fetching int
	// waiting are QPs that wait for a buffer of outgoing.
	waiting workList
	// fetches counts the cargoes that have been fetched.
	fetches uint64
	// spare are cargoes without a buffer.
	spare []*cargo
	// taken is the space for the cargoes that copiers have done.
	taken [2][]*cargo
}

// bufferPool makes buffers when they are first needed, and keeps them.
type bufferPool struct {
	all, idle []*buffer
	limit     int
}

// get returns a buffer, nil if all are in use.
func (p *bufferPool) get(device verbs.MemoryDevice) *buffer {
	if n := len(p.idle); n > 0 {
		b := p.idle[n-1]
		p.idle = p.idle[:n-1]
		return b
	}
	if len(p.all) == p.limit {
		return nil
	}
	mem, err := verbs.AllocMemory(cargoSize, nil)
	if err != nil {
		return nil
	}
	b := &buffer{mem: mem}
	if unpin, err := device.PinHost(mem); err == nil { // else copies are slower
		b.unpin = unpin
	}
	p.all = append(p.all, b)
	return b
}

// free gives the memory of all buffers back. Memory that the device may still access stays.
func (p *bufferPool) free() {
	for _, b := range p.all {
		if b.unpin != nil {
			_ = b.unpin() // of a lost device it fails, and unpins
		}
		_ = b.mem.Free() // refused while it is pinned
	}
	p.all, p.idle = nil, nil
}

// depotOf returns the depot for a device with one more user. It is nil if the NIC does without: in its own process memory is copied within
// the call.
func (n *NIC) depotOf(device verbs.MemoryDevice) *depot {
	c := n.core
	if device == nil || !c.distant() {
		return nil
	}
	for _, d := range c.depots {
		if d.device == device {
			d.users++
			return d
		}
	}
	half := n.cfg.Staging / 2 / cargoSize
	d := &depot{nic: n, device: device, users: 1, report: make(chan struct{}, 1), stop: make(chan struct{})}
	d.outgoing.limit, d.incoming.limit = half, half
	d.waiting.bit = onDepot
	d.fetcher.init()
	d.lander.init()
	d.start()
	c.depots = append(c.depots, d)
	if c.wire != nil {
		c.wire.alone.Store(true)
	}
	c.devices++
	return d
}

// leave is called for each region that is deregistered. When it returns no copy uses the region. The last one ends the depot.
func (d *depot) leave() {
	d.depart(true)
	d.lander.drain()
	d.fetcher.drain()
	d.remind()
	if d.users--; d.users > 0 {
		return
	}
	d.reap()
	for _, b := range d.outgoing.all {
		if b.load != nil && b.load.feed != nil {
			b.load.feed.yield(b.load)
		}
	}
	c := d.nic.core
	for i, o := range c.depots {
		if o == d {
			c.depots = append(c.depots[:i:i], c.depots[i+1:]...)
			break
		}
	}
	d.resume()
	close(d.stop)
	for _, b := range c.neighbors {
		b.files.closeOn(d.device)
	}
	d.outgoing.free()
	d.incoming.free()
}

// arrived reports whether cargoes have been copied and not been taken.
func (d *depot) arrived() bool { return d.fetcher.ready.Load() != 0 || d.lander.ready.Load() != 0 }

// depots are those of a NIC, one for each device.
type depots []*depot

// arrived reports whether settle has something to do for one of them.
func (l depots) arrived() bool {
	for _, d := range l {
		if d.arrived() {
			return true
		}
	}
	return false
}

// copying reports whether a cargo is under way.
func (l depots) copying() bool {
	for _, d := range l {
		if d.landing+d.fetching > 0 {
			return true
		}
	}
	return false
}

// reap schedules the QPs whose bytes have been fetched, and completes what waits for bytes that have landed.
func (d *depot) reap() {
	if d.fetcher.ready.Load() != 0 {
		d.taken[0] = d.fetcher.take(d.taken[0])
		for _, g := range d.taken[0] {
			d.fetching--
			g.fetched, g.age = true, d.fetches
			d.fetches++
			if g.feed == nil {
				d.recycle(g)
			} else {
				d.nic.core.lists.tx.push(g.feed.q)
			}
		}
		d.resume() // behind those whose bytes these are: what they cannot send can be reclaimed
	}
	if d.lander.ready.Load() != 0 {
		d.taken[1] = d.lander.take(d.taken[1])
		for _, g := range d.taken[1] {
			d.landing--
			g.landed()
			d.recycle(g)
		}
	}
}

// depart gives the open landing to the copier, if that has little to do or if it must.
func (d *depot) depart(must bool) {
	if d.open != nil && (must || d.landing < maxLanding) {
		d.lander.submit(d.open)
		d.landing++
		d.open = nil
	}
}

// load returns an empty cargo with a buffer, nil if there is no buffer.
func (d *depot) load(b *buffer) *cargo {
	if b == nil {
		return nil
	}
	n := len(d.spare)
	if n == 0 {
		return &cargo{depot: d, buffer: b}
	}
	g := d.spare[n-1]
	d.spare = d.spare[:n-1]
	g.buffer = b
	return g
}

// recycle takes a cargo that nothing needs any more.
func (d *depot) recycle(g *cargo) {
	if b := g.buffer; b != nil {
		pool := &d.incoming
		if b.load != nil {
			b.load, pool = nil, &d.outgoing
		}
		if !g.stuck {
			pool.idle = append(pool.idle, b)
		}
	}
	clear(g.copies)
	clear(g.extents)
	clear(g.parts)
	*g = cargo{depot: d, copies: g.copies[:0], extents: g.extents[:0], parts: g.parts[:0]}
	d.spare = append(d.spare, g)
	d.resume()
}

// resume schedules the QPs that wait for a buffer. Those that get none wait again.
func (d *depot) resume() {
	for q := d.waiting.pop(); q != nil; q = d.waiting.pop() {
		d.nic.core.lists.tx.push(q)
	}
}

// room returns a landing with room for more bytes. It may wait for copies. It returns nil if copies that failed may still use all
// buffers.
func (d *depot) room() *cargo {
	if g := d.open; g != nil && (g.used == cargoSize || len(g.copies) == maxCopies) {
		d.depart(true)
	}
	if d.open == nil {
		d.open = d.load(d.incoming.get(d.device))
	}
	if d.open == nil {
		d.lander.drain()
		d.remind()
		d.unload()
		d.open = d.load(d.incoming.get(d.device))
	}
	return d.open
}

// unload takes the buffers of landings that have been copied and not been taken. What they complete is left to reap, because a QP may be
// in the middle of a packet.
func (d *depot) unload() {
	d.lander.mu.Lock()
	defer d.lander.mu.Unlock()
	for _, g := range d.lander.done {
		if g.buffer != nil && !g.stuck {
			d.incoming.idle = append(d.incoming.idle, g.buffer)
			g.buffer = nil
		}
	}
}
