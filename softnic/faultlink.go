package softnic

import (
	"math/rand/v2"

	"ibverbx/verbs"
)

// FaultConfig describes a FaultLink. The zero value, or a nil pointer, is a link that
// segments and queues packets but treats them well.
type FaultConfig struct {
	// Seed decides every fault. The same seed and the same traffic give the same
	// faults.
	Seed uint64
	// Impairment is what happens to packets in every direction that Impair does not
	// name. Zero is nothing.
	Impairment Impairment
	// Window is how many packets a requester may have unacknowledged. Zero means 128.
	Window int
	// Queue is how many packets of one NIC may be under way before it must wait.
	// Zero means 1024.
	Queue int
	// Now is the clock; see MemoryConfig.Now.
	Now func() int64
}

// FaultLink joins NICs of one process by packets of at most one MTU, which it copies,
// queues, and treats as badly as it is told: it loses, repeats, delays, reorders and
// corrupts them, and can be cut. Every decision comes from a seed.
type FaultLink struct {
	core       core
	cfg        FaultConfig
	rng        *rand.Rand
	directions map[[2]*NIC]*direction
	flights    flightHeap
	free       []*flight
	order      uint64
}

// direction is the state of one way between two NICs.
type direction struct {
	imp   Impairment
	cut   bool
	busy  int64 // when the wire is free again
	last  int64 // when the last packet arrives: none that is not reordered comes before
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
	buf     []byte
}

// NewFaultLink returns a link without NICs. A nil cfg means the defaults.
func NewFaultLink(cfg *FaultConfig) (*FaultLink, error) {
	l := &FaultLink{directions: make(map[[2]*NIC]*direction)}
	if cfg != nil {
		l.cfg = *cfg
	}
	if err := l.cfg.Impairment.validate(); err != nil {
		return nil, verbs.NewOpError("make fault link", "", 0, err)
	}
	if l.cfg.Window < 0 || l.cfg.Window > maxWindow || l.cfg.Queue < 0 {
		return nil, verbs.NewOpError("make fault link", "", 0,
			verbs.Invalidf("Window %d and Queue %d: want at least 0, and a window of at most %d", l.cfg.Window, l.cfg.Queue, maxWindow))
	}
	if l.cfg.Window == 0 {
		l.cfg.Window = 128
	}
	if l.cfg.Queue == 0 {
		l.cfg.Queue = 1024
	}
	l.rng = rand.New(rand.NewPCG(l.cfg.Seed, 0))
	l.core.init(l, l.cfg.Now)
	l.core.timed = true
	return l, nil
}

// Step runs what is due at the present time of the link's clock. It returns the time
// at which something will be due next, and whether anything will.
func (l *FaultLink) Step() (next int64, pending bool) { return l.core.step() }

// Impair sets what happens to packets from one NIC to another; the way back is not
// touched.
func (l *FaultLink) Impair(from, to *NIC, imp Impairment) error {
	if from == nil || to == nil {
		return verbs.NewOpError("impair", "", 0, verbs.Invalidf("a NIC is nil"))
	}
	if err := imp.validate(); err != nil {
		return verbs.NewOpError("impair", from.name, 0, err)
	}
	l.core.mu.Lock()
	defer l.core.mu.Unlock()
	l.direction(from, to).imp = imp
	return nil
}

// Cut makes every packet from one NIC to another disappear, from now on and those
// under way too, until Restore.
func (l *FaultLink) Cut(from, to *NIC) { l.setCut(from, to, true) }

// Restore ends a Cut.
func (l *FaultLink) Restore(from, to *NIC) { l.setCut(from, to, false) }

func (l *FaultLink) setCut(from, to *NIC, cut bool) {
	l.core.mu.Lock()
	defer l.core.mu.Unlock()
	l.direction(from, to).cut = cut
}

// Stats returns what happened to packets from one NIC to another.
func (l *FaultLink) Stats(from, to *NIC) FaultStats {
	l.core.mu.Lock()
	defer l.core.mu.Unlock()
	if d := l.directions[[2]*NIC{from, to}]; d != nil {
		return d.stats
	}
	return FaultStats{}
}

func (l *FaultLink) direction(from, to *NIC) *direction {
	key := [2]*NIC{from, to}
	d := l.directions[key]
	if d == nil {
		d = &direction{imp: l.cfg.Impairment}
		l.directions[key] = d
	}
	return d
}

func (l *FaultLink) shared() *core                { return &l.core }
func (l *FaultLink) kind() string                 { return "fault" }
func (l *FaultLink) segment(mtu verbs.MTU) uint32 { return uint32(mtu.Bytes()) }
func (l *FaultLink) window() uint32               { return uint32(l.cfg.Window) }

func (l *FaultLink) direct(*qp) *qp { return nil }

func (l *FaultLink) room(from *NIC, q *qp) bool {
	if from.queued < l.cfg.Queue {
		return true
	}
	if !q.awaitsRoom {
		q.awaitsRoom = true
		from.waiting.push(q)
	}
	return false
}

func (l *FaultLink) next() int64 {
	if len(l.flights) == 0 {
		return never
	}
	return l.flights[0].at
}

// forget drops the packets from and to n, and what is set for its directions.
func (l *FaultLink) forget(n *NIC) {
	for key := range l.directions {
		if key[0] == n || key[1] == n {
			delete(l.directions, key)
		}
	}
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

func (l *FaultLink) send(from *NIC, p *packet) {
	to := l.core.find(p.path)
	switch {
	case to == nil:
		from.stats.Unroutable++
		return
	case !from.portUp:
		from.stats.PortDownDrops++
		return
	}
	d := l.direction(from, to)
	d.stats.Sent++
	r := l.route(d, from, to, p)
	if d.cut || (r != nil && r.Cut) {
		d.stats.Cut++
		return
	}
	if l.happens(d.imp.Loss) {
		d.stats.Lost++
		return
	}
	l.launch(d, r, from, to, p)
	if l.happens(d.imp.Duplicate) {
		d.stats.Duplicated++
		l.launch(d, r, from, to, p)
	}
}

func (l *FaultLink) happens(probability float64) bool {
	return probability > 0 && l.rng.Float64() < probability
}

// launch puts a copy of p under way.
func (l *FaultLink) launch(d *direction, r *route, from, to *NIC, p *packet) {
	f := l.take()
	f.packet, f.from, f.to, f.dir, f.route = *p, from, to, d, r
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
	if (r != nil && !r.pass(f)) || (to.egress != nil && !to.egress.pass(f)) {
		d.stats.Overflow++
		l.recycle(f)
		return
	}
	from.queued++
	l.flights.push(f)
}

// timing decides when f arrives. Packets of one direction arrive in order, except those
// chosen to be overtaken by some of the next.
func (l *FaultLink) timing(d *direction, f *flight) {
	at := l.core.at
	var wire int64
	if d.imp.Rate > 0 {
		wire = int64(float64(len(f.buf)+packetOverhead) / d.imp.Rate * 1e9)
		at = max(at, d.busy) + wire
		d.busy = at
	}
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

const (
	// packetOverhead is Ethernet, IPv4, UDP, BTH and ICRC around a payload.
	packetOverhead = 14 + 20 + 8 + 12 + 4 + 4
	// maxOvertaken is how many packets may overtake a reordered one.
	maxOvertaken = 4
	// orderStride leaves numbers free between two packets for overtaken ones.
	orderStride = 8
)

func (l *FaultLink) take() *flight {
	if n := len(l.free); n > 0 {
		f := l.free[n-1]
		l.free = l.free[:n-1]
		return f
	}
	return &flight{}
}

func (l *FaultLink) deliver(now int64, budget int) int {
	n := 0
	for n < budget && len(l.flights) > 0 && l.flights[0].at <= now {
		f := l.flights.pop()
		l.land(f)
		n++
	}
	return n
}

// departed notes that a packet of n is no longer under way, and lets QPs go on that waited
// for room.
func (l *FaultLink) departed(n *NIC) {
	n.queued--
	if n.queued > l.cfg.Queue/2 {
		return
	}
	for q := n.waiting.pop(); q != nil; q = n.waiting.pop() {
		q.awaitsRoom = false
		l.core.schedule(q)
	}
}

// recycle keeps a flight for the next packet.
func (l *FaultLink) recycle(f *flight) {
	f.from, f.to, f.dir, f.route, f.packet.path = nil, nil, nil, nil, nil
	l.free = append(l.free, f)
}

// land hands a packet to its destination, unless its direction is held.
func (l *FaultLink) land(f *flight) {
	l.departed(f.from)
	if f.dir.holding {
		f.dir.kept = append(f.dir.kept, f)
		return
	}
	l.arrive(f)
	l.recycle(f)
}

// arrive hands a packet on, or not, as its direction and its destination are now.
func (l *FaultLink) arrive(f *flight) {
	switch {
	case f.to.closed:
	case f.dir.cut || (f.route != nil && f.route.Cut):
		f.dir.stats.Cut++
	case f.corrupt:
		f.to.stats.BadICRC++
	default:
		f.dir.stats.Delivered++
		f.to.receive(&f.packet)
	}
}
