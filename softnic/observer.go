package softnic

import "ibverbx/verbs"

// Touch is one access of a NIC to memory: what it read or wrote, for whom and when. The
// bytes of a packet are one Touch for every piece of memory that they come from or go to.
type Touch struct {
	// NIC is the NIC whose registered memory it is, and QPN its QP.
	NIC *NIC
	QPN uint32
	// At is the time of the link's clock when the core last looked at it.
	At     int64
	Addr   uint64
	Length uint32
	Kind   TouchKind
}

// TouchKind says what an access was.
type TouchKind uint8

// Kinds of accesses.
const (
	// TouchGather reads the bytes of a request that this side posted.
	TouchGather TouchKind = iota
	// TouchScatter writes a message that was received, or the answer to a READ or atomic
	// that this side posted.
	TouchScatter
	// TouchRemoteWrite writes for a WRITE of the peer.
	TouchRemoteWrite
	// TouchRemoteRead reads for a READ of the peer.
	TouchRemoteRead
	// TouchRemoteAtomic reads, and perhaps writes, for an atomic of the peer.
	TouchRemoteAtomic
	// TouchInline reads the bytes of an INLINE request, at post time. They need not be
	// registered memory.
	TouchInline
)

var touchNames = [...]string{"gather", "scatter", "remote-write", "remote-read", "remote-atomic", "inline"}

// String names the kind.
func (k TouchKind) String() string {
	if int(k) < len(touchNames) {
		return touchNames[k]
	}
	return "unknown"
}

// Observe makes f see every access of the NIC to memory, when it happens; nil ends that. f
// is called with the lock of the link held: it must not call into a NIC or its link. A NIC
// that is observed does not take the short cut of the memory link for small WRITEs.
func (n *NIC) Observe(f func(Touch)) {
	n.core.mu.Lock()
	defer n.core.mu.Unlock()
	n.observe = f
}

// observed reports whether one of two NICs is observed.
func observed(a, b *NIC) bool { return a.observe != nil || b.observe != nil }

// touch tells the observer of an access. It is called only if there is one.
func (q *qp) touch(kind TouchKind, addr uint64, n uint32) {
	q.nic.observe(Touch{NIC: q.nic, QPN: q.num, At: q.core.at, Addr: addr, Length: n, Kind: kind})
}

// touchInline tells the observer of the pieces of an INLINE request.
func (q *qp) touchInline(wr *verbs.SendWR) {
	for k := range wr.NumSGE {
		if s := &wr.SGE[k]; s.Length > 0 {
			q.touch(TouchInline, s.Addr, s.Length)
		}
	}
}
