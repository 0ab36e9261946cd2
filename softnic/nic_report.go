package softnic

import (
	"slices"

	"ibverbx/verbs"
)

// eventQueue holds the unread asynchronous events of a context.
type eventQueue struct {
	pending []verbs.Event
	waker   wakeTarget
}

// wakeTarget is an optional Waker.
type wakeTarget struct{ w *verbs.Waker }

func (t wakeTarget) wake() {
	if t.w != nil {
		t.w.Wake()
	}
}

// raise queues an event. It counts and drops events if the queue is full. The caller holds the lock.
func (x *hostContext) raise(e verbs.Event) {
	limit := maxEvents
	if e.QP == nil && e.SRQ == nil {
		limit += maxDeviceEvents // the events of one QP must not displace events for many QPs
	}
	if len(x.events.pending) >= limit {
		x.nic.stats.EventsLost++
		return
	}
	x.events.pending = append(x.events.pending, e)
	x.events.waker.wake()
}

func (x *hostContext) Events(dst []verbs.Event) (int, error) {
	x.core.mu.hold()
	defer x.core.mu.Unlock()
	if x.closed {
		return 0, verbs.NewOpError("take events", x.nic.name, 0, verbs.ErrClosed)
	}
	n := copy(dst, x.events.pending)
	x.events.pending = slices.Delete(x.events.pending, 0, n)
	if n == 0 && len(x.events.pending) == 0 && x.nic.failed {
		return 0, verbs.NewOpError("take events", x.nic.name, 0, verbs.ErrDeviceFatal)
	}
	return n, nil
}

func (x *hostContext) NotifyEvents(w *verbs.Waker) error {
	x.core.mu.hold()
	defer x.core.mu.Unlock()
	if x.closed {
		return verbs.NewOpError("notify events", x.nic.name, 0, verbs.ErrClosed)
	}
	x.events.waker = wakeTarget{w}
	if len(x.events.pending) > 0 {
		x.events.waker.wake()
	}
	return nil
}

// purge drops the pending events of a QP, CQ or SRQ under destruction, so that Events never returns a
// closed object.
func (x *hostContext) purge(dead func(verbs.Event) bool) {
	x.events.pending = slices.DeleteFunc(x.events.pending, dead)
}

// Stats holds the counters of a NIC since its creation.
type Stats struct {
	PacketsSent     uint64
	PacketsReceived uint64
	// Direct counts WRITEs and READs that the NIC executed itself, directly in the memory of a peer
	// process (ShmLink, UDPConfig.SharedMemory).
	Direct uint64

	// Reliability.
	GoBacks         uint64 // go-backs of requesters, about one per lost packet
	Retransmits     uint64 // retransmitted packets: requests, including probes, and responses to repeated READs and atomics
	Timeouts        uint64 // expired ACK timers
	Probes          uint64 // packets retransmitted to solicit a response from a silent peer
	NAKsSent        uint64 // sequence and fatal NAKs
	RNRNAKsSent     uint64 // RNR NAKs
	Duplicates      uint64 // request packets received again
	OutOfOrder      uint64 // request packets received behind a gap
	MessagesDropped uint64 // UC and UD messages that could not be placed

	// WrongKeys counts peer requests rejected for an invalid key, range or access right.
	WrongKeys uint64
	// WritesBlocked counts UC packets dropped unchecked after too many invalid keys.
	WritesBlocked uint64

	// Seals counts packets dropped by seal checks.
	Seals SealStats

	// Packets dropped, by reason.
	UnknownQP     uint64
	NotReady      uint64 // the QP's state does not allow receiving
	WrongSource   uint64 // not from the QP's peer
	BadICRC       uint64 // corrupted
	BadQKey       uint64 // UD only
	BadPKey       uint64 // partition mismatch
	Malformed     uint64 // invalid length, version, opcode, pad or syndrome
	SendDrops     uint64 // rejected by the kernel
	Unroutable    uint64 // destination unknown
	PortDownDrops uint64 // the port is down

	CongestionNotices uint64 // CNPs received
	ReceiveErrors     uint64 // receive errors of the socket

	// EventsLost counts asynchronous events dropped because the queue was full.
	EventsLost uint64
}

// QPStats holds the error counters of one QP. The NIC's Stats include them.
type QPStats struct {
	GoBacks     uint64 // go-backs of the requester, about one per lost packet
	Retransmits uint64 // retransmitted packets: requests, including probes, and responses to repeated READs and atomics
	Timeouts    uint64 // expired ACK timers
	NAKsSent    uint64 // sequence and fatal NAKs
	RNRNAKsSent uint64 // RNR NAKs
}

// SealStats counts packets dropped by seal checks (docs/wire.md).
type SealStats struct {
	Bad      uint64 // forged or corrupted
	Replayed uint64 // received before
	Old      uint64 // older than the replay window, or sealed with an expired key
	Unknown  uint64 // session unknown to the NIC
	Wrong    uint64 // session or NIC differs from the QP's
	Plain    uint64 // unsealed, for a sealed QP
}

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
