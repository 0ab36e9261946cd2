package softnic

import (
	"math/rand/v2"

	"ibverbx/internal/heap"
	"ibverbx/verbs"
)

// faults is the layer below a link that queues and impairs packets. carry accepts packets; land
// delivers the surviving ones when due. A seed determines every decision.
type faults struct {
	core *core
	seed uint64
	rng  *rand.Rand
	// limit is the maximum number of packets in flight per NIC.
	limit int
	// inTurn makes packets enter the fabric's queues on arrival there, not when sent.
	inTurn bool
	// land delivers a packet.
	land    func(*inFlightPacket)
	flights heap.Heap[*inFlightPacket]
	free    []*inFlightPacket
	// order numbers packets to break ties between equal times.
	order uint64
	// impairment applies to new directions.
	impairment Impairment
	directions map[directionKey]*direction
}

// directionKey identifies a direction: from a NIC to another NIC, or over UDP to an address.
type directionKey struct {
	from, to *NIC
	gid      verbs.GID
}

// between returns the direction from one NIC of a link to another.
func between(from, to *NIC) directionKey { return directionKey{from: from, to: to} }

// direction is the state of one direction between two NICs.
type direction struct {
	imp Impairment
	// cut drops every packet.
	cut bool
	// limiter is the sender's port, used if imp has a rate.
	limiter rateLimiter
	// last is the arrival time of the last packet. Later packets arrive no earlier unless reordered.
	last  int64
	stats FaultStats
	// holding makes arriving packets wait in kept.
	holding bool
	kept    []*inFlightPacket
	// routes are the paths between the two NICs. Empty means one path without a queue.
	routes []*route
}

// inFlightPacket is a packet in flight. It owns its payload.
type inFlightPacket struct {
	at      int64
	order   uint64
	packet  packet
	from    *NIC
	to      *NIC
	corrupt bool
	dir     *direction
	// route is nil if the direction has no paths.
	route *route
	// hops counts the fabric queues passed so far.
	hops int
	buf  []byte
}

func (l *faults) init(c *core, seed uint64, limit int, imp Impairment, land func(*inFlightPacket)) {
	l.core, l.seed, l.limit, l.impairment, l.land = c, seed, limit, imp, land
	l.rng = rand.New(rand.NewPCG(seed, 0))
	l.directions = make(map[directionKey]*direction)
}

// direction returns the state of a direction, which it creates on first use. The caller holds the lock.
func (l *faults) direction(key directionKey) *direction {
	d := l.directions[key]
	if d == nil {
		d = &direction{imp: l.impairment}
		l.directions[key] = d
	}
	return d
}

// change runs f on a direction under the lock, and routes packets through the layer from now on.
func (l *faults) change(key directionKey, f func(d *direction)) {
	l.core.mu.Lock()
	defer l.core.mu.Unlock()
	l.core.queue = l
	f(l.direction(key))
}

// look runs f on a direction under the lock, if the direction exists.
func (l *faults) look(key directionKey, f func(d *direction)) {
	l.core.mu.Lock()
	defer l.core.mu.Unlock()
	if d := l.directions[key]; d != nil {
		f(d)
	}
}

// impair validates an impairment and applies it to a direction.
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

// room reports whether the NIC of q may send another packet now. Otherwise q is scheduled once
// space is available.
func (l *faults) room(q *qp) bool {
	if q.nic.queued < l.limit {
		return true
	}
	q.nic.waiting.push(q)
	return false
}

// forget drops all packets from and to n, and the state of its directions.
func (l *faults) forget(n *NIC) {
	for key := range l.directions {
		if key.from == n || key.to == n {
			delete(l.directions, key)
		}
	}
	old := l.flights
	l.flights = heap.Heap[*inFlightPacket]{}
	for old.Len() > 0 {
		f := old.Pop()
		if f.from == n || f.to == n {
			l.arrivedOrLost(f.from)
			l.recycle(f)
			continue
		}
		l.push(f)
	}
}

// carry accepts a packet in a direction, on route r if the direction has paths. to is nil if the
// destination is in another process.
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
	l.enqueue(d, r, from, to, p)
	if l.happens(d.imp.Duplicate) {
		d.stats.Duplicated++
		l.enqueue(d, r, from, to, p)
	}
}

func (l *faults) happens(probability float64) bool {
	return probability > 0 && l.rng.Float64() < probability
}

// enqueue sends a copy of p.
func (l *faults) enqueue(d *direction, r *route, from, to *NIC, p *packet) {
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
	l.schedule(d, f)
	from.queued++
	if l.inTurn || l.forward(f, never) {
		l.push(f)
	}
}

// schedule sets the arrival time of f. Packets of one direction arrive in order, except that up to
// maxOvertaken later packets overtake a reordered one.
func (l *faults) schedule(d *direction, f *inFlightPacket) {
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

// occupy reserves the sender's port for a packet, even if the packet is lost later. It returns the
// departure time and the transmission time.
func (l *faults) occupy(d *direction, payload int) (left, took int64) {
	if d.imp.Rate == 0 {
		return l.core.at, 0
	}
	return d.limiter.occupy(l.core.at, payload, d.imp.Rate)
}

// rateLimiter is a port that sends one packet at a time.
type rateLimiter struct {
	// busy is the end of the last transmission.
	busy int64
	// rest is the rounding error carried to the next packet, in nanoseconds.
	rest float64
}

// occupy queues a packet until the port is free and then sends it at rate bytes per second. It returns
// the departure time and the transmission time.
func (w *rateLimiter) occupy(at int64, payload int, rate float64) (left, took int64) {
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
	// maxOvertaken is the maximum number of packets that overtake a reordered one.
	maxOvertaken = 4
	// orderStride reserves order numbers between two packets for overtaken ones.
	orderStride = 8
)

func (l *faults) take() *inFlightPacket {
	if n := len(l.free); n > 0 {
		f := l.free[n-1]
		l.free = l.free[:n-1]
		return f
	}
	return &inFlightPacket{}
}

// deliver lands up to budget due packets and returns their number.
func (l *faults) deliver(now int64, budget int) int {
	n := 0
	for n < budget && l.flights.Len() > 0 && l.flights.Next() <= now {
		f := l.flights.Pop()
		n++
		if !l.forward(f, min(now+1, l.flights.Next())) {
			continue
		}
		l.arrivedOrLost(f.from)
		l.land(f)
	}
	return n
}

// forward sends a due packet through the fabric queues that it reaches before a time: first its path's,
// then the destination port's. It reports whether the packet has arrived. Otherwise the packet is in
// flight again, or lost. At equal times, a packet already in flight reaches its next queue first.
func (l *faults) forward(f *inFlightPacket, before int64) bool {
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
			l.arrivedOrLost(f.from)
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

func (l *faults) push(f *inFlightPacket) { l.flights.Push(f.at, f.order, f) }

// arrivedOrLost records that a packet of n has left the network, and schedules the QPs that waited for
// space.
func (l *faults) arrivedOrLost(n *NIC) {
	n.queued--
	if n.queued > l.limit/2 {
		return
	}
	for q := n.waiting.pop(); q != nil; q = n.waiting.pop() {
		l.core.lists.tx.push(q)
	}
}

// recycle keeps f for reuse.
func (l *faults) recycle(f *inFlightPacket) {
	f.from, f.to, f.dir, f.route, f.packet.path = nil, nil, nil, nil, nil
	l.free = append(l.free, f)
}
