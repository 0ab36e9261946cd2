package ibverbx

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"ibverbx/internal/ring"
	"ibverbx/verbs"
)

// Control carries small datagrams between the two sides of a VirtualQP, independently of its lanes. The
// sides use it to agree on lost lanes and to rebuild them. A Control may lose, duplicate, delay and
// reorder datagrams. It serves one VirtualQP on each side; a datagram for another VirtualQP is answered
// as if that VirtualQP were closed. Its methods must not block. The engine calls Send and Recv from the
// goroutine that uses the VirtualCQ.
type Control interface {
	// Send sends a datagram of at most MaxControl bytes. On error the datagram counts as lost: the
	// engine counts it (Stats.ControlErrors), adds the error to the lane's cause, and retransmits.
	Send(b []byte) error
	// Recv receives a datagram into b, which holds MaxControl bytes. n is 0 if no datagram is queued. An
	// error that wraps ErrPeerGone fails the VirtualQP: the channel knows that the peer is closed, and
	// waiting for its lanes would be pointless. Other errors are ignored.
	Recv(b []byte) (n int, err error)
	// Notify registers wake. The Control must call it whenever a datagram arrives and when Recv starts
	// to return an error; the engine does not call Recv before that. Connect calls Notify; Close calls
	// it with nil, which unregisters wake. wake never blocks and is safe for concurrent use.
	Notify(wake func())
}

// MaxControl is the maximum datagram size of a Control, in bytes: an offer with the longest
// verbs.Endpoint.Extra. Most datagrams are far shorter: an offer has 64 bytes plus the provider's Extra.
const MaxControl = ctlOffered + verbs.MaxEndpointExtra

// ctlKind is the kind of a datagram.
type ctlKind uint8

const (
	// ctlDown reports that a generation of a lane is out of service locally.
	ctlDown ctlKind = iota + 1
	// ctlOffer carries the address of a lane's next generation.
	ctlOffer
	// ctlReset answers a datagram for a closed VirtualQP.
	ctlReset
)

// ctlMessage is a datagram:
//
//	0        4         5      6      8            10      12     16          24         32
//	| "ibvx" | version | kind | lane | generation | flags | recv |   from    |    to    | endpoint (offer) ...
//
// All numbers are little-endian. from and to are the incarnations of the two sides. recv is the number of receive
// completions that the generation delivered (down), or with ctlConnected the qpFingerprint of the QP that the sender
// is connected to (offer). The endpoint of an offer:
//
//	32    36    40    42    43   44          45             46      48     64
//	| qpn | psn | lid | mtu | rail | rd atomic | dest rd atomic | extra | gid  | extra bytes
type ctlMessage struct {
	kind       ctlKind
	lane       uint16
	generation uint16
	flags      uint16
	received   uint32
	from, to   uint64
	rail       uint8
	endpoint   verbs.Endpoint
}

const (
	ctlVersion = 1
	ctlMagic   = "ibvx"
	ctlHeader  = 32
	ctlOffered = 64
	// ctlConnected is set in an offer if the sender's QP is connected to the receiver's.
	ctlConnected = 1 << 0
	// ctlAnswer is set when no response is due.
	ctlAnswer = 1 << 1
)

// encode writes the datagram into b and returns its length, or an error if it does not fit.
func (m *ctlMessage) encode(b []byte) (int, error) {
	copy(b, ctlMagic)
	b[4], b[5] = ctlVersion, byte(m.kind)
	le := binary.LittleEndian
	le.PutUint16(b[6:], m.lane)
	le.PutUint16(b[8:], m.generation)
	le.PutUint16(b[10:], m.flags)
	le.PutUint32(b[12:], m.received)
	le.PutUint64(b[16:], m.from)
	le.PutUint64(b[24:], m.to)
	if m.kind != ctlOffer {
		return ctlHeader, nil
	}
	e := &m.endpoint
	n := ctlOffered + len(e.Extra)
	if n > min(len(b), MaxControl) {
		return 0, verbs.Invalidf("endpoint with %d bytes of provider data: at most %d fit a control message", len(e.Extra), MaxControl-ctlOffered)
	}
	le.PutUint32(b[32:], e.QPN)
	le.PutUint32(b[36:], e.PSN)
	le.PutUint16(b[40:], e.LID)
	b[42], b[43], b[44], b[45] = byte(e.MTU), m.rail, e.MaxRdAtomic, e.MaxDestRdAtomic
	le.PutUint16(b[46:], uint16(len(e.Extra)))
	copy(b[48:64], e.GID[:])
	copy(b[ctlOffered:], e.Extra)
	return n, nil
}

// decodeControl decodes and validates a peer's datagram.
func decodeControl(b []byte) (m ctlMessage, err error) {
	if len(b) < ctlHeader || string(b[:4]) != ctlMagic {
		return m, verbs.Invalidf("%d bytes are not a control message", len(b))
	}
	if b[4] != ctlVersion {
		return m, verbs.Invalidf("control message of version %d: want %d", b[4], ctlVersion)
	}
	le := binary.LittleEndian
	m.kind, m.lane, m.generation = ctlKind(b[5]), le.Uint16(b[6:]), le.Uint16(b[8:])
	m.flags, m.received, m.from, m.to = le.Uint16(b[10:]), le.Uint32(b[12:]), le.Uint64(b[16:]), le.Uint64(b[24:])
	if m.flags&^(ctlConnected|ctlAnswer) != 0 {
		return m, verbs.Invalidf("control message with unknown flags %#x", m.flags)
	}
	switch m.kind {
	case ctlDown, ctlReset:
		if len(b) != ctlHeader {
			return m, verbs.Invalidf("control message of kind %d with %d bytes, want %d", m.kind, len(b), ctlHeader)
		}
		return m, nil
	case ctlOffer:
	default:
		return m, verbs.Invalidf("unknown control message kind %d", m.kind)
	}
	if len(b) < ctlOffered || len(b) != ctlOffered+int(le.Uint16(b[46:])) {
		return m, verbs.Invalidf("offer of %d bytes: its length does not match its contents", len(b))
	}
	m.rail = b[43]
	m.endpoint = verbs.Endpoint{
		QPN: le.Uint32(b[32:]), PSN: le.Uint32(b[36:]), LID: le.Uint16(b[40:]), MTU: verbs.MTU(b[42]),
		MaxRdAtomic: b[44], MaxDestRdAtomic: b[45],
	}
	copy(m.endpoint.GID[:], b[48:64])
	if len(b) > ctlOffered {
		m.endpoint.Extra = append([]byte(nil), b[ctlOffered:]...)
	}
	if err := m.endpoint.Validate(); err != nil {
		return m, fmt.Errorf("offer for lane %d: %w", m.lane, err)
	}
	return m, nil
}

// pipe is one end of a ControlPair.
type pipe struct {
	mu   sync.Mutex
	in   ring.Datagrams
	peer *pipe
	wake func() // nil before Notify
}

// ControlPair returns the two ends of an in-process Control. Each end queues 256 datagrams and drops the
// oldest when full. Both ends are safe for concurrent use.
func ControlPair() (Control, Control) {
	x, y := &pipe{}, &pipe{}
	x.peer, y.peer = y, x
	x.in.Open()
	y.in.Open()
	return x, y
}

// Send implements Control.
func (p *pipe) Send(b []byte) error {
	to := p.peer
	to.mu.Lock()
	to.in.Put(b)
	wake := to.wake
	to.mu.Unlock()
	if wake != nil {
		wake()
	}
	return nil
}

// Notify implements Control.
func (p *pipe) Notify(wake func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wake = wake
}

// Recv implements Control.
func (p *pipe) Recv(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.in.Take(b), nil
}

// watchdog watches the oldest incomplete request: its deadline, and the liveness of the peer. It is used with
// Config.Control only.
type watchdog struct {
	setup *setup
	clock *cachedClock

	probing bool // an incomplete request has been seen
	// probeSeq is the oldest incomplete request at the last check; valid while probing.
	probeSeq uint32
	probeAt  int64 // time of the next liveness probe; valid while probing

	late      bool     // a deadline has passed
	lateSince int64    // first time that this was seen; valid while late
	lateAt    barriers // barriers of the rails, set at lateSince; valid while late
}

const (
	// probeTime is the delay before the first liveness probe for the oldest request, and the interval
	// between later probes. A probe checks that the peer is still the connected one.
	probeTime = int64(500 * time.Millisecond)
	// lateGrace is the delay between a missed deadline and the failure of the VirtualQP, even with
	// unpolled completions.
	lateGrace = int64(time.Second)
)

// deadline returns the deadline of a request posted now. A Config.Deadline beyond the clock's range means never.
func (w *watchdog) deadline() int64 {
	now := w.clock.now
	return now + min(int64(w.setup.cfg.Deadline), math.MaxInt64-1-max(now, 0))
}

// probeDue reports whether a liveness probe is due. waiting is set when a request is incomplete, and oldest
// is its number. Lanes need not notice that a peer is closed: a request may wait for the peer's action
// without packets in flight.
func (w *watchdog) probeDue(oldest uint32, waiting bool) bool {
	if !waiting || !w.probing || oldest != w.probeSeq {
		w.probing, w.probeSeq, w.probeAt = waiting, oldest, w.clock.now+probeTime
		return false
	}
	if w.clock.now < w.probeAt {
		return false
	}
	w.probeAt = w.clock.now + probeTime
	return true
}

// expired reports whether the oldest request has missed its deadline. A completion still in a CQ is in time, so the
// CQs are emptied first.
func (w *watchdog) expired(deadline int64) bool {
	now := w.clock.now
	if now <= deadline {
		w.late = false
		return false
	}
	cq := w.setup.cq
	if !w.late {
		w.late, w.lateAt, w.lateSince = true, cq.barriers(), now
	}
	return cq.passedAll(&w.lateAt) || now > w.lateSince+lateGrace
}

// due returns the time of the next check of a request with this deadline.
func (w *watchdog) due(deadline int64) int64 {
	if w.probing {
		return min(deadline+1, max(w.probeAt, w.clock.now+1))
	}
	return min(deadline+1, w.clock.now+probeTime)
}

// watchRequests probes a silent peer, and fails the VirtualQP if the oldest request has missed its
// deadline.
func (f *failover) watchRequests() {
	seq, waiting := f.send.sends.oldest()
	if f.watchdog.probeDue(seq, waiting) {
		f.probePeer()
	}
	deadline := int64(math.MaxInt64)
	if waiting {
		deadline = f.send.sends.slot(seq).deadline
	}
	if f.watchdog.expired(deadline) {
		f.expire(f.send.sends.slot(seq))
	}
}

// probePeer sends a message that does not require a response. If another VirtualQP has replaced the peer's, it
// responds with a Reset.
func (f *failover) probePeer() {
	l := f.setup.all[0]
	if l.recovery.mayReceive() {
		f.sendOffer(l, ctlAnswer)
	} else if l.recovery.reports.hasLast {
		f.link.sendDown(l, ctlAnswer)
	}
}

// expire fails the VirtualQP because a request has missed its deadline.
func (f *failover) expire(r *sendSlot) {
	r.fail(verbs.StatusRetryExcErr, 0)
	cause := fmt.Errorf("%w: a request did not complete within %v", ErrDeadline, f.setup.cfg.Deadline)
	var blamed *lane
	for _, l := range f.setup.all {
		if l.recovery.state != laneUp {
			blamed = l
		}
	}
	if blamed != nil {
		cause = fmt.Errorf("%w; lane %d is out of service: %w", cause, blamed.index, blamed.recovery.downCause())
	}
	f.fail(blamed, cause)
}

// ErrDeadline means that a request did not complete within Config.Deadline.
var ErrDeadline = errors.New("deadline exceeded")
