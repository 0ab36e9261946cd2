package softnic

import "ibverbx/verbs"

const (
	// maxLoads is how many cargoes a feed has: some that are being sent, and others that are fetched meanwhile.
	maxLoads = 4
	// fewLoads is how many it has at most when it fetches more. Two at a time wake the copier once.
	fewLoads = 2
)

// feeds are what a QP sends from memory of devices: that of its requests, numbered as in the send queue, and that of its answers
// to READs, numbered as in jobs.
type feeds struct{ requests, answers feed }

// feed fetches bytes of devices ahead of the packets that carry them, in the order in which they are sent. After
// a loss it starts again: a cargo is dropped when its last packet has left.
type feed struct {
	q     *qp
	loads []*cargo
	// seq and off are the request and the offset in it where fetching goes on. The offset is that of a packet.
	seq, off uint32
	// lent is what the packet being made has of the cargoes.
	lent lent
}

// lent says that bytes of the packet at offset packet of request seq, up to end, are in use. There are none if end is 0.
type lent struct{ seq, packet, end uint32 }

// before reports whether bytes of the packet that are in use come before off.
func (l *lent) before(seq, packet, off uint32) bool {
	return l.end != 0 && l.seq == seq && l.packet == packet && l.end <= off
}

// extent is where n bytes of a request are, off bytes from its start.
type extent struct {
	seq, off, n uint32
	// at is where in the buffer they are.
	at uint32
	m  *mr
}

// before reports whether all of the extent comes before off of request seq.
func (e *extent) before(seq, off uint32) bool {
	return int32(e.seq-seq) < 0 || (e.seq == seq && e.off+e.n <= off)
}

// feeding returns the feeds of the QP.
func (q *qp) feeding() *feeds {
	if q.feeds == nil {
		q.feeds = &feeds{requests: feed{q: q}, answers: feed{q: q}}
	}
	return q.feeds
}

// supply is the outcome of a look for bytes in a feed.
type supply uint8

const (
	supplied      supply = iota
	supplyDue            // they are being fetched, and the QP is scheduled when they are there
	supplyRefused        // they could not be fetched ahead: the packet's own must be copied now, which tells whether they can
	noSupply             // the feed has others
)

// bytes returns n bytes of a region with a depot for the packet at offset packet of request seq. They are off bytes from the start of the
// request, and valid as long as the packet.
func (f *feed) bytes(m *mr, seq, packet, off, n uint32) ([]byte, supply) {
	if f.q.probing { // a probe goes back, and must not make the feed do so
		return nil, supplyRefused
	}
	f.trim(seq, packet)
	b, s := f.find(m, seq, off, n)
	if s == noSupply && f.lent.before(seq, packet, off) {
		return nil, supplyRefused // the packet is in the cargoes, and another device has no buffer for the rest
	}
	if s == noSupply { // the QP has gone back, or has sent other memory since
		f.drop(0)
		f.seq, f.off = seq, packet
	}
	f.fill()
	if s == noSupply {
		b, s = f.find(m, seq, off, n)
	}
	if s == supplied {
		f.lent = lent{seq, packet, off + n}
	}
	if s == noSupply {
		s = supplyRefused
		if f.q.lists&onDepot != 0 {
			s = supplyDue
		}
	}
	return b, s
}

// find looks for bytes in the cargoes.
func (f *feed) find(m *mr, seq, off, n uint32) ([]byte, supply) {
	for _, g := range f.loads {
		for i := g.first; i < len(g.extents) && g.extents[i].seq == seq; i++ {
			e := &g.extents[i]
			if e.m != m || off < e.off || off+n > e.off+e.n {
				continue
			}
			switch {
			case !g.fetched:
				return nil, supplyDue
			case g.failed:
				return nil, supplyRefused
			}
			return g.buffer.mem.Bytes()[e.at+off-e.off:][:n], supplied
		}
	}
	return nil, noSupply
}

// trim drops the cargoes whose bytes all come before off of request seq.
func (f *feed) trim(seq, off uint32) {
	for len(f.loads) > 0 {
		g := f.loads[0]
		for g.first < len(g.extents) && g.extents[g.first].before(seq, off) {
			g.first++
		}
		if g.first < len(g.extents) {
			return
		}
		f.release(0)
	}
}

// release drops cargo i.
func (f *feed) release(i int) {
	g := f.loads[i]
	f.loads = append(f.loads[:i], f.loads[i+1:]...)
	if g.feed = nil; g.fetched {
		g.depot.recycle(g)
	}
}

// drop drops the cargoes from i on.
func (f *feed) drop(i int) {
	for len(f.loads) > i {
		f.release(len(f.loads) - 1)
	}
}

// yield drops a cargo and those behind it. They are fetched again when they are needed. The QP may be waiting for one of them, so it is
// scheduled when the depot has a buffer.
func (f *feed) yield(g *cargo) {
	for i := range f.loads {
		if f.loads[i] == g {
			e := &g.extents[g.first]
			f.seq, f.off = e.seq, e.off/f.q.seg*f.q.seg
			d := g.depot
			f.drop(i)
			d.waiting.push(f.q)
			return
		}
	}
}

// fill fetches what comes next, as far as there are buffers.
func (f *feed) fill() {
	if len(f.loads) > fewLoads {
		return
	}
	if f == &f.q.feeds.requests {
		f.fillRequests()
	} else {
		f.fillAnswers()
	}
	f.submit()
}

// submit gives the last cargo to the copier, if it has not got it.
func (f *feed) submit() {
	if n := len(f.loads); n > 0 && !f.loads[n-1].submitted {
		d := f.loads[n-1].depot
		d.fetcher.submit(f.loads[n-1])
		d.fetching++
	}
}

// fillRequests fetches bytes of posted SENDs and WRITEs.
func (f *feed) fillRequests() {
	q := f.q
	for f.seq != q.sqTail {
		w := q.wqe(f.seq)
		if f.off >= w.length || w.isRequest() || w.flags&verbs.SendInline != 0 || w.placed {
			f.seq, f.off = f.seq+1, 0
			continue
		}
		if w.flags&verbs.SendFence != 0 && f.seq != q.sqNext {
			return // a READ before it may change the bytes
		}
		n := f.run(w.length - f.off)
		at := f.off
		for part := verbs.PartOf(q.sges(f.seq), f.off, n); part.Next(); at += part.SGE.Length {
			if s := &part.SGE; !f.load(q.nic.mrs.get(s.LKey), s.Addr, at, s.Length, 0) {
				return
			}
		}
		f.off += n
	}
}

// fillAnswers fetches bytes that the peer READs.
func (f *feed) fillAnswers() {
	q := f.q
	for f.seq != q.jobs.Tail() {
		j := q.jobs.At(f.seq)
		if f.off >= j.length || j.atomic {
			f.seq, f.off = f.seq+1, 0
			continue
		}
		if q.dock.lacks(j.after) {
			return // a WRITE before it may change the bytes
		}
		n := f.run(j.length - f.off)
		if !f.load(q.nic.mrs.get(j.rkey), j.va+uint64(f.off), f.off, n, verbs.AccessRemoteRead) {
			return
		}
		f.off += n
	}
}

// run returns how many of the next n bytes of a request are fetched together: all of them, or those of whole packets.
func (f *feed) run(n uint32) uint32 {
	room := uint32(cargoSize)
	if k := len(f.loads); k > 0 && !f.loads[k-1].submitted && cargoSize-f.loads[k-1].used >= int(f.q.seg) {
		room = uint32(cargoSize - f.loads[k-1].used)
	}
	if n > room {
		n = room / f.q.seg * f.q.seg
	}
	return n
}

// load adds n bytes at addr of a region to the last cargo, or to another one. They are off bytes from the start of request seq. It
// reports false if there is no buffer. Memory of the host, and memory that may not be used, is left to the packets.
func (f *feed) load(m *mr, addr uint64, off, n uint32, need verbs.Access) bool {
	from, ok := m.onDevice(f.q.pd, addr, n, need)
	if !ok || m.depot == nil {
		return true
	}
	g := f.last(m.depot, n)
	if g == nil {
		return false
	}
	at := uint32(g.used)
	g.add(from, int(n), false)
	if k := len(g.extents); k > 0 {
		if e := &g.extents[k-1]; e.seq == f.seq && e.m == m && e.off+e.n == off && e.at+e.n == at {
			e.n += n
			return true
		}
	}
	g.extents = append(g.extents, extent{seq: f.seq, off: off, n: n, at: at, m: m})
	return true
}

// last returns a cargo with room for n bytes. It returns nil if the feed has enough of them, or if there is none. A feed
// without any takes one from another feed, or waits.
func (f *feed) last(d *depot, n uint32) *cargo {
	k := len(f.loads)
	if k > 0 {
		if g := f.loads[k-1]; !g.submitted && g.depot == d && cargoSize-g.used >= int(n) && len(g.extents) < maxExtents {
			return g
		}
		f.submit()
	}
	if k == maxLoads {
		return nil
	}
	b := d.outgoing.get(d.device)
	if b == nil && k == 0 {
		inUse := d.reclaim(f)
		if b = d.outgoing.get(d.device); b == nil && inUse {
			d.waiting.push(f.q)
		}
	}
	g := d.load(b)
	if g != nil {
		g.feed, b.load = f, g
		f.loads = append(f.loads, g)
	}
	return g
}

// reclaim takes the buffer that has waited longest for its packets from another feed: its QP may be unable to send. It reports whether
// a buffer was in use.
func (d *depot) reclaim(f *feed) (inUse bool) {
	var oldest *cargo
	for _, b := range d.outgoing.all {
		g := b.load
		inUse = inUse || g != nil
		if g != nil && g.fetched && g.feed != nil && g.feed != f && (oldest == nil || g.age < oldest.age) {
			oldest = g
		}
	}
	if oldest != nil {
		oldest.feed.yield(oldest)
	}
	return inUse
}

// trimFeeds drops the cargoes that have been sent.
func (q *qp) trimFeeds() {
	q.feeds.requests.trim(q.sqNext, q.sqOff)
	if q.jobs.Len() > 0 {
		q.feeds.answers.trim(q.jobs.Head(), q.jobs.Front().off)
	} else {
		q.feeds.answers.drop(0)
	}
}
