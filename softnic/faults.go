package softnic

import "math/rand/v2"

// faults is what may go wrong with packets on their way, as a layer under a link: packets go
// in by carry and come out by land, when they are due and if they are not lost. Every
// decision comes from a seed.
type faults struct {
	core    *core
	rng     *rand.Rand
	queue   int  // packets of one NIC that may be under way
	inTurn  bool // packets come to the queues of the fabric one after the other
	land    func(*flight)
	flights flightHeap
	free    []*flight
	order   uint64
}

// direction is the state of one way between two NICs.
type direction struct {
	imp   Impairment
	cut   bool
	busy  int64   // when the wire is free again
	rest  float64 // of a nanosecond, which the next packet has to wait, too
	last  int64   // when the last packet arrives: none that is not reordered comes before
	stats FaultStats
	// holding keeps packets back when they arrive, in kept.
	holding bool
	kept    []*flight
	routes  []*route // the paths between the two, none if there is one only
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
	route   *route // nil if its direction has no paths
	hops    int    // queues of the fabric that are behind it
	buf     []byte
}

func (l *faults) init(c *core, seed uint64, queue int, land func(*flight)) {
	l.core, l.queue, l.land = c, queue, land
	l.rng = rand.New(rand.NewPCG(seed, 0))
}

// room reports whether from may send another packet now. If not, q goes on when it may.
func (l *faults) room(from *NIC, q *qp) bool {
	if from.queued < l.queue {
		return true
	}
	if !q.awaitsRoom {
		q.awaitsRoom = true
		from.waiting.push(q)
	}
	return false
}

// next is the time at which a packet is due, never if there is none.
func (l *faults) next() int64 {
	if len(l.flights) == 0 {
		return never
	}
	return l.flights[0].at
}

// forget drops the packets from and to n.
func (l *faults) forget(n *NIC) {
	old := l.flights
	l.flights = nil
	for _, f := range old {
		if f.from == n || f.to == n {
			l.departed(f.from)
			l.recycle(f)
			continue
		}
		l.flights.push(f)
	}
}

// carry takes a packet that is sent in a direction, on one of its paths if it has some. to
// is nil if the far end is not of this process.
func (l *faults) carry(d *direction, r *route, from, to *NIC, p *packet) {
	d.stats.Sent++
	if d.cut || (r != nil && r.Cut) {
		d.stats.Cut++
		l.occupy(d, int(p.length))
		return
	}
	if l.happens(d.imp.Loss) {
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
		l.flights.push(f)
	}
}

// timing decides when f arrives. Packets of one direction arrive in order, except those
// chosen to be overtaken by some of the next.
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

// occupy takes the wire for a packet, lost on its way or not. It returns when the packet has
// left, and how long the wire takes for it.
func (l *faults) occupy(d *direction, payload int) (at, wire int64) {
	at = l.core.at
	if d.imp.Rate > 0 {
		exact := float64(payload+PacketOverhead)/d.imp.Rate*1e9 + d.rest
		wire = int64(exact)
		d.rest = exact - float64(wire)
		at = max(at, d.busy) + wire
		d.busy = at
	}
	return at, wire
}

// PacketOverhead is what every packet of a link with a rate counts beside its payload, in
// bytes: Ethernet with its check sum, IPv4, UDP, BTH and ICRC. The headers that only some
// packets have, preamble and gap do not count.
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
	for n < budget && len(l.flights) > 0 && l.flights[0].at <= now {
		f := l.flights.pop()
		n++
		if !l.forward(f, now) {
			continue
		}
		l.departed(f.from)
		l.land(f)
	}
	return n
}

// forward takes a packet that is due through the queues of the fabric that are still before it:
// that of its path and that of the port of its destination, as far as it gets to them until
// now. It reports whether it has arrived; if not it is under way again, or lost.
func (l *faults) forward(f *flight, now int64) bool {
	for f.hops < 2 {
		f.hops++
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
		if f.at > now {
			l.flights.push(f)
			return false
		}
	}
	return true
}

// departed notes that a packet of n is no longer under way, and lets QPs go on that waited
// for room.
func (l *faults) departed(n *NIC) {
	n.queued--
	if n.queued > l.queue/2 {
		return
	}
	for q := n.waiting.pop(); q != nil; q = n.waiting.pop() {
		q.awaitsRoom = false
		l.core.schedule(q)
	}
}

// recycle keeps a flight for the next packet.
func (l *faults) recycle(f *flight) {
	f.from, f.to, f.dir, f.route, f.packet.path = nil, nil, nil, nil, nil
	l.free = append(l.free, f)
}
