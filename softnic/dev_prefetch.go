package softnic

import "ibverbx/verbs"

const (
	// maxBatches limits the batches of a prefetcher, sent and prefetched ones.
	maxBatches = 4
	// refillBatches is the maximum number of batches of a prefetcher that still fetches more. Fetching two at a
	// time wakes the copier once.
	refillBatches = 2
)

// prefetchers fetch device data that a QP sends: for its requests, numbered as in the send queue, and for its READ
// responses, numbered as in qp.responses.
type prefetchers struct{ requests, responses prefetcher }

// prefetcher fetches device data ahead of the packets that carry it, in sending order. A batch is dropped after its
// last packet, so a loss fetches it again.
type prefetcher struct {
	q       *qp
	batches []*stagedBatch
	// seq and off are the position of the next fetch: a request, and the offset of a packet in it.
	seq, off uint32
	// busy is the prefetched data in the packet under construction.
	busy busyRange
}

// busyRange covers the data from offset packet of request seq up to end. It is empty if end is 0.
type busyRange struct{ seq, packet, end uint32 }

// before reports whether the packet at offset packet of request seq uses prefetched data before off.
func (l *busyRange) before(seq, packet, off uint32) bool {
	return l.end != 0 && l.seq == seq && l.packet == packet && l.end <= off
}

// extent locates n bytes of a request, off bytes from its start, in a staging buffer.
type extent struct {
	seq, off, n uint32
	// at is their offset in the buffer.
	at uint32
	m  *mr
}

// before reports whether the whole extent precedes offset off of request seq.
func (e *extent) before(seq, off uint32) bool {
	return int32(e.seq-seq) < 0 || (e.seq == seq && e.off+e.n <= off)
}

// prefetching returns the QP's prefetchers, and creates them on first use.
func (q *qp) prefetching() *prefetchers {
	if q.prefetch == nil {
		q.prefetch = &prefetchers{requests: prefetcher{q: q}, responses: prefetcher{q: q}}
	}
	return q.prefetch
}

// fetchResult is the result of a lookup in a prefetcher.
type fetchResult uint8

const (
	fetchDone    fetchResult = iota
	fetchPending             // the fetch is in progress; the QP is scheduled when it is done
	fetchRefused             // prefetching failed: the packet must copy its own data now, which decides whether that is possible
	fetchMissing             // the prefetcher holds other data
)

// bytes returns n bytes of a region with a stager for the packet at offset packet of request seq. They are off bytes
// from the start of the request, and stay valid until the packet is sent.
func (f *prefetcher) bytes(m *mr, seq, packet, off, n uint32) ([]byte, fetchResult) {
	if f.q.probing { // a probe retransmits, which must not discard the prefetched data
		return nil, fetchRefused
	}
	f.trim(seq, packet)
	b, s := f.find(m, seq, off, n)
	if s == fetchMissing && f.busy.before(seq, packet, off) {
		return nil, fetchRefused // the packet uses prefetched data, and another device is out of buffers for the rest
	}
	if s == fetchMissing { // the QP has gone back, or has sent other memory since
		f.drop(0)
		f.seq, f.off = seq, packet
	}
	f.fill()
	if s == fetchMissing {
		b, s = f.find(m, seq, off, n)
	}
	if s == fetchDone {
		f.busy = busyRange{seq, packet, off + n}
	}
	if s == fetchMissing {
		s = fetchRefused
		if f.q.lists&onStager != 0 {
			s = fetchPending
		}
	}
	return b, s
}

// find looks up data in the batches.
func (f *prefetcher) find(m *mr, seq, off, n uint32) ([]byte, fetchResult) {
	for _, g := range f.batches {
		for i := g.first; i < len(g.extents) && g.extents[i].seq == seq; i++ {
			e := &g.extents[i]
			if e.m != m || off < e.off || off+n > e.off+e.n {
				continue
			}
			switch {
			case !g.fetched:
				return nil, fetchPending
			case g.failed:
				return nil, fetchRefused
			}
			return g.buffer.mem.Bytes()[e.at+off-e.off:][:n], fetchDone
		}
	}
	return nil, fetchMissing
}

// trim drops the batches that lie entirely before off of request seq.
func (f *prefetcher) trim(seq, off uint32) {
	for len(f.batches) > 0 {
		g := f.batches[0]
		for g.first < len(g.extents) && g.extents[g.first].before(seq, off) {
			g.first++
		}
		if g.first < len(g.extents) {
			return
		}
		f.release(0)
	}
}

// release drops batch i.
func (f *prefetcher) release(i int) {
	g := f.batches[i]
	f.batches = append(f.batches[:i], f.batches[i+1:]...)
	if g.prefetcher = nil; g.fetched {
		g.stager.recycle(g)
	}
}

// drop drops the batches from i on.
func (f *prefetcher) drop(i int) {
	for len(f.batches) > i {
		f.release(len(f.batches) - 1)
	}
}

// evict drops a batch and those behind it, which are fetched again on demand. The QP may be waiting for one of them,
// so it is scheduled when the stager has a buffer.
func (f *prefetcher) evict(g *stagedBatch) {
	for i := range f.batches {
		if f.batches[i] == g {
			e := &g.extents[g.first]
			f.seq, f.off = e.seq, e.off/f.q.seg*f.q.seg
			d := g.stager
			f.drop(i)
			d.waiting.push(f.q)
			return
		}
	}
}

// fill fetches the next data if buffers are available.
func (f *prefetcher) fill() {
	if len(f.batches) > refillBatches {
		return
	}
	if f == &f.q.prefetch.requests {
		f.fillRequests()
	} else {
		f.fillResponses()
	}
	f.submit()
}

// submit passes the last batch to the copier, once.
func (f *prefetcher) submit() {
	if n := len(f.batches); n > 0 && !f.batches[n-1].submitted {
		d := f.batches[n-1].stager
		d.fetcher.submit(f.batches[n-1])
		d.fetching++
	}
}

// fillRequests fetches the data of posted SENDs and WRITEs.
func (f *prefetcher) fillRequests() {
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
		n := f.chunk(w.length - f.off)
		at := f.off
		for part := verbs.PartOf(q.sges(f.seq), f.off, n); part.Next(); at += part.SGE.Length {
			if s := &part.SGE; !f.add(q.nic.mrs.get(s.LKey), s.Addr, at, s.Length, 0) {
				return
			}
		}
		f.off += n
	}
}

// fillResponses fetches the data of the peer's READs.
func (f *prefetcher) fillResponses() {
	q := f.q
	for f.seq != q.responses.Tail() {
		j := q.responses.At(f.seq)
		if f.off >= j.length || j.atomic {
			f.seq, f.off = f.seq+1, 0
			continue
		}
		if q.landings.pendingBefore(j.after) {
			return // a WRITE before it may change the bytes
		}
		n := f.chunk(j.length - f.off)
		if !f.add(q.nic.mrs.get(j.rkey), j.va+uint64(f.off), f.off, n, verbs.AccessRemoteRead) {
			return
		}
		f.off += n
	}
}

// chunk reduces n, the number of bytes left of a request, to whole packets that fit a buffer. It returns n if all
// fit.
func (f *prefetcher) chunk(n uint32) uint32 {
	room := uint32(stagingBufferSize)
	if k := len(f.batches); k > 0 && !f.batches[k-1].submitted && stagingBufferSize-f.batches[k-1].used >= int(f.q.seg) {
		room = uint32(stagingBufferSize - f.batches[k-1].used)
	}
	if n > room {
		n = room / f.q.seg * f.q.seg
	}
	return n
}

// add queues the fetch of n bytes at addr of a region, off bytes from the start of request seq. It reports false if no
// buffer is available. Host memory, and memory that the QP may not use, is left to the packets.
func (f *prefetcher) add(m *mr, addr uint64, off, n uint32, need verbs.Access) bool {
	from, ok := m.onDevice(f.q.pd, addr, n, need)
	if !ok || m.stager == nil {
		return true
	}
	g := f.batchFor(m.stager, n)
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

// batchFor returns a batch with space for n bytes, nil if the prefetcher has maxBatches or no buffer is available. A
// prefetcher without batches takes a buffer from another one, or waits.
func (f *prefetcher) batchFor(d *stager, n uint32) *stagedBatch {
	k := len(f.batches)
	if k > 0 {
		if g := f.batches[k-1]; !g.submitted && g.stager == d && stagingBufferSize-g.used >= int(n) && len(g.extents) < maxExtents {
			return g
		}
		f.submit()
	}
	if k == maxBatches {
		return nil
	}
	b := d.outgoing.get(d.device)
	if b == nil && k == 0 {
		inUse := d.evictOldest(f)
		if b = d.outgoing.get(d.device); b == nil && inUse {
			d.waiting.push(f.q)
		}
	}
	g := d.newBatch(b)
	if g != nil {
		g.prefetcher, b.batch = f, g
		f.batches = append(f.batches, g)
	}
	return g
}

// evictOldest takes the buffer that has waited longest to be sent from another prefetcher, whose QP may be unable to
// send. It reports whether a buffer was in use.
func (d *stager) evictOldest(f *prefetcher) (inUse bool) {
	var oldest *stagedBatch
	for _, b := range d.outgoing.all {
		g := b.batch
		inUse = inUse || g != nil
		if g != nil && g.fetched && g.prefetcher != nil && g.prefetcher != f && (oldest == nil || g.age < oldest.age) {
			oldest = g
		}
	}
	if oldest != nil {
		oldest.prefetcher.evict(oldest)
	}
	return inUse
}

// trimPrefetch drops the batches that have been sent.
func (q *qp) trimPrefetch() {
	q.prefetch.requests.trim(q.sqNext, q.sqOff)
	if q.responses.Len() > 0 {
		q.prefetch.responses.trim(q.responses.Head(), q.responses.Front().off)
	} else {
		q.prefetch.responses.drop(0)
	}
}
