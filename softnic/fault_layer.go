package softnic

import (
	"math/rand/v2"

	"ibverbx/internal/heap"
	"ibverbx/verbs"
)

// faults is a layer under a link that queues packets and harms some of them. Packets go in by
// carry. Those that are not lost come out by land when they are due. Every decision comes from
// a seed.
type faults struct {
	core *core
	seed uint64
	rng  *rand.Rand
	// limit is how many packets of one NIC may be under way.
	limit int
	// inTurn makes packets enter the queues of the fabric when they reach them.
	inTurn bool
	// land takes a packet that has arrived.
	land    func(*flight)
	flights heap.Heap[*flight]
	free    []*flight
	// order numbers packets, so that those of one time keep their order.
	order uint64
	// impairment is that of new directions.
	impairment Impairment
	directions map[directionKey]*direction
}

// directionKey names a direction: from a NIC to another NIC, or over UDP to an address.
type directionKey struct {
	from, to *NIC
	gid      verbs.GID
}

// between names the direction from one NIC of a link to another.
func between(from, to *NIC) directionKey { return directionKey{from: from, to: to} }

// direction is the state of the way from one NIC to another.
type direction struct {
	imp Impairment
	// cut makes every packet disappear.
	cut bool
	// wire is the sender's port, if imp has a rate.
	wire wire
	// last is when the last packet arrives. Packets that are not reordered do not come earlier.
	last  int64
	stats FaultStats
	// holding makes arriving packets wait in kept.
	holding bool
	kept    []*flight
	// routes are the paths between the two NICs. Empty means one path without a queue.
	routes []*route
}

// flight is a packet under way. It owns its payload.
type flight struct {
	at      int64
	order   uint64
	packet  packet
	from    *NIC
	to      *NIC
	corrupt bool
	dir     *direction
	// route is nil if the direction has no paths.
	route *route
	// hops counts the queues of the fabric that the packet has passed.
	hops int
	buf  []byte
}

func (l *faults) init(c *core, seed uint64, limit int, imp Impairment, land func(*flight)) {
	l.core, l.seed, l.limit, l.impairment, l.land = c, seed, limit, imp, land
	l.rng = rand.New(rand.NewPCG(seed, 0))
	l.directions = make(map[directionKey]*direction)
}

// direction returns a direction and makes it if it is new. The lock is held.
func (l *faults) direction(key directionKey) *direction {
	d := l.directions[key]
	if d == nil {
		d = &direction{imp: l.impairment}
		l.directions[key] = d
	}
	return d
}

// change locks and runs f on a direction. From now on packets go through the layer.
func (l *faults) change(key directionKey, f func(d *direction)) {
	l.core.mu.Lock()
	defer l.core.mu.Unlock()
	l.core.queue = l
	f(l.direction(key))
}

// look locks and runs f on a direction if there is one.
func (l *faults) look(key directionKey, f func(d *direction)) {
	l.core.mu.Lock()
	defer l.core.mu.Unlock()
	if d := l.directions[key]; d != nil {
		f(d)
	}
}

// impair checks an impairment and sets it for a direction.
func (l *faults) impair(key directionKey, imp Impairment) error {
	if err := imp.validate(); err != nil {
		return verbs.NewOpError("impair", key.from.name, 0, err)
	}
	l.change(key, func(d *direction) { d.imp = imp })
	return nil
}

func (l *faults) statsOf(key directionKey) (s FaultStats) {
	l.look(key, func(d *direction) { s = d.stats })
	return s
}

// room reports whether the NIC of q may send another packet now. If not, q is scheduled when it
// may.
func (l *faults) room(q *qp) bool {
	if q.nic.queued < l.limit {
		return true
	}
	q.nic.waiting.push(q)
	return false
}

// forget drops the packets from and to n, and the state of its directions.
func (l *faults) forget(n *NIC) {
	for key := range l.directions {
		if key.from == n || key.to == n {
			delete(l.directions, key)
		}
	}
	old := l.flights
	l.flights = heap.Heap[*flight]{}
	for old.Len() > 0 {
		f := old.Pop()
		if f.from == n || f.to == n {
			l.departed(f.from)
			l.recycle(f)
			continue
		}
		l.push(f)
	}
}

// carry takes a packet that is sent in a direction, on route r if the direction has paths. to
// is nil if the far end is in another process.
func (l *faults) carry(d *direction, r *route, from, to *NIC, p *packet) {
	d.stats.Sent++
	if d.cut || (r != nil && r.Cut) {
		d.stats.Cut++
		l.occupy(d, int(p.length))
		return
	}
	if l.happens(d.imp.Loss) || (r != nil && l.happens(r.Loss)) {
		d.stats.Lost++
		l.occupy(d, int(p.length))
		return
	}
	l.launch(d, r, from, to, p)
	if l.happens(d.imp.Duplicate) {
		d.stats.Duplicated++
		l.launch(d, r, from, to, p)
	}
}

func (l *faults) happens(probability float64) bool {
	return probability > 0 && l.rng.Float64() < probability
}

// launch puts a copy of p under way.
func (l *faults) launch(d *direction, r *route, from, to *NIC, p *packet) {
	f := l.take()
	f.packet, f.from, f.to, f.dir, f.route, f.hops = *p, from, to, d, r, 0
	f.buf = f.buf[:0]
	for k := range p.numSegs {
		f.buf = append(f.buf, p.segs[k]...)
	}
	clear(f.packet.segs[:])
	f.packet.setPayload(f.buf)
	if f.corrupt = l.happens(d.imp.Corrupt); f.corrupt {
		d.stats.Corrupted++
	}
	l.timing(d, f)
	from.queued++
	if l.inTurn || l.forward(f, never) {
		l.push(f)
	}
}

// timing decides when f arrives. Packets of one direction arrive in order, except reordered
// ones, which some of the next packets overtake.
func (l *faults) timing(d *direction, f *flight) {
	at, wire := l.occupy(d, len(f.buf))
	at += int64(d.imp.Delay)
	if d.imp.Jitter > 0 {
		at += l.rng.Int64N(int64(d.imp.Jitter))
	}
	at = max(at, d.last)
	d.last = at
	l.order += orderStride
	f.at, f.order = at, l.order
	if l.happens(d.imp.Reorder) {
		d.stats.Reordered++
		behind := 1 + l.rng.Uint64N(maxOvertaken)
		f.at += int64(behind) * wire
		f.order += behind*orderStride + 1
	}
}

// occupy takes the sender's port for a packet, lost later or not. It returns when the packet
// has left, and how long it occupied the port.
func (l *faults) occupy(d *direction, payload int) (left, took int64) {
	if d.imp.Rate == 0 {
		return l.core.at, 0
	}
	return d.wire.occupy(l.core.at, payload, d.imp.Rate)
}

// wire is a port that sends one packet at a time.
type wire struct {
	// busy is when the port is free again.
	busy int64
	// rest is the fraction of a nanosecond that rounding owes the next packet.
	rest float64
}

// occupy makes a packet wait until the port is free and then occupy it at a rate in bytes per
// second. It returns when the packet has left, and how long it occupied the port.
func (w *wire) occupy(at int64, payload int, rate float64) (left, took int64) {
	exact := float64(payload+PacketOverhead)/rate*1e9 + w.rest
	took = int64(exact)
	w.rest = exact - float64(took)
	w.busy = max(at, w.busy) + took
	return w.busy, took
}

// PacketOverhead is the number of bytes that each packet occupies on a rate-limited link in addition to
// its payload: Ethernet header and checksum, IPv4, UDP, BTH and ICRC. Optional headers, the preamble and
// the gap are not included.
const PacketOverhead = 14 + 20 + 8 + 12 + 4 + 4

const (
	// maxOvertaken is how many packets may overtake a reordered one.
	maxOvertaken = 4
	// orderStride leaves numbers free between two packets for overtaken ones.
	orderStride = 8
)

func (l *faults) take() *flight {
	if n := len(l.free); n > 0 {
		f := l.free[n-1]
		l.free = l.free[:n-1]
		return f
	}
	return &flight{}
}

// deliver lands at most budget packets that are due, and returns how many.
func (l *faults) deliver(now int64, budget int) int {
	n := 0
	for n < budget && l.flights.Len() > 0 && l.flights.Next() <= now {
		f := l.flights.Pop()
		n++
		if !l.forward(f, min(now+1, l.flights.Next())) {
			continue
		}
		l.departed(f.from)
		l.land(f)
	}
	return n
}

// forward takes a packet that is due through the queues of the fabric that it reaches before
// a time: first that of its path, then that of the destination's port. It reports whether the
// packet has arrived. If not, the packet is under way again, or lost. A packet that is under way
// reaches its next queue first if it is due at that time.
func (l *faults) forward(f *flight, before int64) bool {
	for f.hops < 2 {
		f.hops++
		reached := f.at
		var fits bool
		if f.hops == 1 {
			fits = f.route == nil || f.route.pass(f)
		} else {
			fits = f.to == nil || f.to.egress == nil || f.to.egress.pass(f)
		}
		if !fits {
			f.dir.stats.Overflow++
			l.departed(f.from)
			l.recycle(f)
			return false
		}
		if f.at > reached && f.at >= before {
			l.push(f)
			return false
		}
	}
	return true
}

func (l *faults) push(f *flight) { l.flights.Push(f.at, f.order, f) }

// departed notes that a packet of n is no longer under way, and schedules QPs that waited for
// room.
func (l *faults) departed(n *NIC) {
	n.queued--
	if n.queued > l.limit/2 {
		return
	}
	for q := n.waiting.pop(); q != nil; q = n.waiting.pop() {
		l.core.lists.tx.push(q)
	}
}

// recycle keeps a flight for the next packet.
func (l *faults) recycle(f *flight) {
	f.from, f.to, f.dir, f.route, f.packet.path = nil, nil, nil, nil, nil
	l.free = append(l.free, f)
}
