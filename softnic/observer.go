package softnic

import "ibverbx/verbs"

// Touch is one access of a NIC to memory. A packet makes one Touch for every piece of memory that its
// bytes come from or go to.
type Touch struct {
	// NIC is the NIC whose registered memory it is.
	NIC *NIC
	// QPN is the QP of that NIC.
	QPN uint32
	// At is the time on the link's clock when the core last looked at it.
	At int64
	// Addr is the address of the first byte.
	Addr uint64
	// Length is the number of bytes.
	Length uint32
	Kind   TouchKind
}

// TouchKind is the kind of an access.
type TouchKind uint8

// Kinds of accesses.
const (
	// TouchGather reads the bytes of a request that this side posted.
	TouchGather TouchKind = iota
	// TouchScatter writes a received message, or the answer to a READ or atomic that this side
	// posted.
	TouchScatter
	// TouchRemoteWrite writes for a WRITE of the peer.
	TouchRemoteWrite
	// TouchRemoteRead reads for a READ of the peer.
	TouchRemoteRead
	// TouchRemoteAtomic reads, and perhaps writes, for an atomic of the peer.
	TouchRemoteAtomic
	// TouchInline reads the bytes of an INLINE request at post time. They need not be registered.
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

// Observe makes the NIC call f at every access to memory. Nil ends that. f is called with the lock of
// the link held: it must not call a NIC or its link. Requests of an observed NIC on a memory link or a ShmLink travel as
// packets.
func (n *NIC) Observe(f func(Touch)) {
	n.core.mu.Lock()
	defer n.core.mu.Unlock()
	n.observe = f
	n.admit()
}

// touch reports an access to the observer. The caller checks that there is one.
func (q *qp) touch(kind TouchKind, addr uint64, n uint32) {
	q.nic.observe(Touch{NIC: q.nic, QPN: q.num, At: q.core.at, Addr: addr, Length: n, Kind: kind})
}

// touchInline reports the pieces of an INLINE request to the observer.
func (q *qp) touchInline(sges []verbs.SGE) {
	for k := range sges {
		if s := &sges[k]; s.Length > 0 {
			q.touch(TouchInline, s.Addr, s.Length)
		}
	}
}
