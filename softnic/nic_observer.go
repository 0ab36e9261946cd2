package softnic

import "ibverbx/verbs"

// MemoryAccess is one access of a NIC to memory. A packet causes one MemoryAccess per contiguous source
// or destination range.
type MemoryAccess struct {
	// NIC is the NIC with the registered memory.
	NIC *NIC
	// QPN is the number of the QP on that NIC.
	QPN uint32
	// At is the time that the core last read from the link's clock.
	At int64
	// Addr is the address of the first byte.
	Addr uint64
	// Length is the number of bytes.
	Length uint32
	// Kind is the kind of access.
	Kind AccessKind
}

// AccessKind is the kind of a MemoryAccess.
type AccessKind uint8

// Access kinds.
const (
	// AccessGather reads the bytes of a locally posted request.
	AccessGather AccessKind = iota
	// AccessScatter writes a received message, or the response to a locally posted READ or atomic.
	AccessScatter
	// AccessRemoteWrite writes for the peer's WRITE.
	AccessRemoteWrite
	// AccessRemoteRead reads for the peer's READ.
	AccessRemoteRead
	// AccessRemoteAtomic reads, and possibly writes, for the peer's atomic.
	AccessRemoteAtomic
	// AccessInline reads the bytes of an INLINE request at post time. They may be unregistered.
	AccessInline
)

var touchNames = [...]string{"gather", "scatter", "remote-write", "remote-read", "remote-atomic", "inline"}

// String returns the kind's name.
func (k AccessKind) String() string {
	if int(k) < len(touchNames) {
		return touchNames[k]
	}
	return "unknown"
}

// Observe makes the NIC call f on every memory access; nil disables it. f runs with the link's lock
// held: it must not call a NIC or its link. Requests of an observed NIC on a MemoryLink or ShmLink
// travel as packets, which is slower.
func (n *NIC) Observe(f func(MemoryAccess)) {
	n.core.mu.Lock()
	defer n.core.mu.Unlock()
	n.revoke()
	n.observe = f
	n.grantAll()
	n.core.settle()
}

// touch reports an access to the observer, which must not be nil.
func (q *qp) touch(kind AccessKind, addr uint64, n uint32) {
	q.nic.observe(MemoryAccess{NIC: q.nic, QPN: q.num, At: q.core.at, Addr: addr, Length: n, Kind: kind})
}

// touchInline reports the pieces of an INLINE request to the observer.
func (q *qp) touchInline(sges []verbs.SGE) {
	for k := range sges {
		if s := &sges[k]; s.Length > 0 {
			q.touch(AccessInline, s.Addr, s.Length)
		}
	}
}
