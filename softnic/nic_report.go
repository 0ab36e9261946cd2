package softnic

import (
	"slices"

	"ibverbx/verbs"
)

// eventQueue holds the asynchronous events of a context until they are taken.
type eventQueue struct {
	pending []verbs.Event
	waker   wakeTarget
}

// wakeTarget is a Waker or nothing.
type wakeTarget struct{ w *verbs.Waker }

func (t wakeTarget) wake() {
	if t.w != nil {
		t.w.Wake()
	}
}

// raise queues an event. The lock is held. Events that find the queue full are counted and dropped.
func (x *hostContext) raise(e verbs.Event) {
	limit := maxEvents
	if e.QP == nil && e.SRQ == nil {
		limit += maxDeviceEvents // events of one QP must not crowd out those that concern many
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

// purge drops the pending events of a QP, CQ or SRQ that is being destroyed, so that Events does not
// return a closed object.
func (x *hostContext) purge(dead func(verbs.Event) bool) {
	x.events.pending = slices.DeleteFunc(x.events.pending, dead)
}

// Stats are the counters of a NIC.
type Stats struct {
	PacketsSent     uint64
	PacketsReceived uint64
	// Direct counts WRITEs and READs that the NIC has done itself, on the memory of the peer of a
	// ShmLink.
	Direct uint64

	// Reliability.
	Retransmits     uint64 // how often a requester went back
	Timeouts        uint64 // acknowledgement timers that fired
	Probes          uint64 // packets sent again to make a silent peer answer
	NAKsSent        uint64 // sequence and fatal NAKs
	RNRNAKsSent     uint64
	Duplicates      uint64 // requests received again
	OutOfOrder      uint64 // requests received behind a gap
	MessagesDropped uint64 // UC and UD messages that could not be placed

	// WrongKeys counts requests of peers whose key, range or access right was wrong.
	WrongKeys uint64
	// WritesBlocked counts UC packets that were dropped unseen, because too many keys were wrong just before.
	WritesBlocked uint64

	// Seals counts packets that were dropped because of seals.
	Seals SealStats

	// Packets dropped, by reason.
	UnknownQP     uint64
	NotReady      uint64 // the state of the QP does not allow receiving
	WrongSource   uint64 // not from the QP's peer
	BadICRC       uint64
	BadQKey       uint64
	BadPKey       uint64
	Malformed     uint64 // not a packet: length, version, opcode, pad or syndrome
	SendDrops     uint64 // refused by the kernel
	Unroutable    uint64
	PortDownDrops uint64

	CongestionNotices uint64 // CNPs received
	ReceiveErrors     uint64 // errors of the receiving socket

	// EventsLost counts asynchronous events that found their queue full.
	EventsLost uint64
}

// QPStats counts what went wrong on one QP. All of it is in the Stats of the NIC, too.
type QPStats struct {
	Retransmits uint64 // how often the requester went back
	Timeouts    uint64 // acknowledgement timers that fired
	NAKsSent    uint64 // sequence and fatal NAKs
	RNRNAKsSent uint64
}

// SealStats counts packets that were dropped because of seals (docs/wire.md).
type SealStats struct {
	Bad      uint64 // forged or damaged
	Replayed uint64 // came before
	Old      uint64 // older than the replay window, or under a key whose time is over
	Unknown  uint64 // of no session that the NIC has
	Wrong    uint64 // of another session or NIC than the QP's
	Plain    uint64 // not sealed, for a sealed QP
}

// MemoryAccess is one access of a NIC to memory. A packet makes one MemoryAccess for every piece of memory that its
// bytes come from or go to.
type MemoryAccess struct {
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
func (n *NIC) Observe(f func(MemoryAccess)) {
	n.core.mu.Lock()
	defer n.core.mu.Unlock()
	n.observe = f
	n.admit()
}

// touch reports an access to the observer. The caller checks that there is one.
func (q *qp) touch(kind TouchKind, addr uint64, n uint32) {
	q.nic.observe(MemoryAccess{NIC: q.nic, QPN: q.num, At: q.core.at, Addr: addr, Length: n, Kind: kind})
}

// touchInline reports the pieces of an INLINE request to the observer.
func (q *qp) touchInline(sges []verbs.SGE) {
	for k := range sges {
		if s := &sges[k]; s.Length > 0 {
			q.touch(TouchInline, s.Addr, s.Length)
		}
	}
}
