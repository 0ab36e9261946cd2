package ibverbx

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"ibverbx/internal/counter"
)

// This file contains the agreements of the two sides about a lane. They exchange Down messages to agree that a
// generation is out of service and which of its data has arrived, and choose the rails of the next one.

// controlLink sends and receives control messages.
type controlLink struct {
	setup  *setup
	errors counter.Counter // messages that failed to send or decode
	// buf holds the current datagram.
	buf [MaxControl]byte
}

// send sends a control message. A lost one is retransmitted later.
func (k *controlLink) send(m *ctlMessage) error {
	m.from = k.setup.incarnation
	n, err := m.encode(k.buf[:])
	if err == nil {
		err = k.setup.cfg.Control.Send(k.buf[:n])
	}
	if err != nil {
		k.errors.Add(1)
	}
	return err
}

// sendFor sends a control message about a lane. The lane keeps the error until its next offer is sent.
func (k *controlLink) sendFor(l *lane, m *ctlMessage) {
	m.lane, m.to = l.index, k.setup.peer
	if err := k.send(m); err != nil || m.kind == ctlOffer {
		l.owner.mu.Lock()
		l.recovery.unsent = err
		l.owner.mu.Unlock()
	}
}

// sendDown reports to the peer that the previous generation is out of service here, and how much of it arrived.
func (k *controlLink) sendDown(l *lane, flags uint16) {
	d := &l.recovery.reports
	k.sendFor(l, &ctlMessage{kind: ctlDown, generation: d.lastGeneration, received: d.lastReceived, flags: flags})
}

// sendReset reports to the peer that this VirtualQP is closed or has failed.
func (k *controlLink) sendReset() {
	if k.setup.cfg.Control != nil && k.setup.peer != 0 {
		_ = k.send(&ctlMessage{kind: ctlReset, to: k.setup.peer}) // counted
	}
}

// receiveControl handles the queued control messages.
func (f *failover) receiveControl() {
	for range pollBatch {
		n, err := f.setup.cfg.Control.Recv(f.link.buf[:])
		if errors.Is(err, ErrPeerGone) {
			f.peerExit.begin(f, err)
		}
		if err != nil || n == 0 {
			return // on any other error a message is lost
		}
		m, err := decodeControl(f.link.buf[:min(n, MaxControl)])
		if err != nil {
			f.link.errors.Add(1)
			continue
		}
		f.handleControl(&m)
	}
	f.setup.cq.ready.mark(f.setup.owner) // more may be queued
}

// handleControl handles a control message.
func (f *failover) handleControl(m *ctlMessage) {
	u := f.setup
	switch {
	case m.to != u.incarnation:
		// It is for this VirtualQP's predecessor. Its sender must not wait for a response forever.
		if m.kind != ctlReset {
			_ = f.link.send(&ctlMessage{kind: ctlReset, to: m.from}) // counted
		}
		return
	case m.kind == ctlReset:
		f.peerExit.begin(f, fmt.Errorf("%w: its VirtualQP is closed or has failed", ErrPeerGone))
		return
	case m.from != u.peer:
		return
	case f.state != stateConnected:
		f.link.sendReset()
		return
	case int(m.lane) >= len(u.all):
		f.failControl("a control message for lane %d of %d", m.lane, len(u.all))
		return
	}
	switch l := u.all[m.lane]; m.kind {
	case ctlDown:
		f.handleDown(l, m)
	case ctlOffer:
		f.handleOffer(l, m)
	case ctlReset:
	}
}

// ErrPeerGone means that the peer's VirtualQP is closed or has failed, or that another VirtualQP answers
// in its place.
var ErrPeerGone = errors.New("the peer is gone")

// peerExit is the known end of a peer, before it fails the VirtualQP.
type peerExit struct {
	cause    error // nil while the peer is present
	since    int64
	barriers barriers // barriers of the rails, set at since
}

// exitGrace bounds the delay, on this host, of acknowledgments that a peer sent before it exited.
const exitGrace = int64(10 * time.Millisecond)

// begin fails the VirtualQP because the peer has exited. If requests are outstanding, or messages may have arrived on a
// lane out of service, check does so later, after the acknowledgments and messages that the peer had sent are polled:
// the Control may overtake them.
func (v *peerExit) begin(f *failover, cause error) {
	if f.state != stateConnected || v.cause != nil {
		return
	}
	if _, waiting := f.send.sends.oldest(); !waiting && !slices.ContainsFunc(f.setup.all, (*lane).holdsMessages) {
		f.fail(nil, cause)
		return
	}
	*v = peerExit{cause: cause, since: f.clock.now, barriers: f.setup.cq.barriers()}
}

// check fails the VirtualQP once an exited peer's last acknowledgments must have arrived.
func (v *peerExit) check(f *failover) {
	if f.state != stateConnected || v.cause == nil || f.clock.now-v.since < exitGrace {
		return
	}
	if f.setup.cq.passedAll(&v.barriers) || f.clock.now-v.since > lateGrace {
		f.fail(nil, v.cause)
	}
}

// failControl fails the VirtualQP because of an invalid control message.
func (f *failover) failControl(format string, args ...any) {
	f.fail(nil, fmt.Errorf("the peer does not keep to the control protocol: %s", fmt.Sprintf(format, args...)))
}

// sendDown reports the end of the last generation, and schedules the retransmission.
func (f *failover) sendDown(l *lane) {
	f.link.sendDown(l, 0)
	l.recovery.due, l.recovery.reports.unannounced = f.clock.now+f.pause(&l.recovery), false
}

// pause returns the delay of the next retransmission. It grows with the time in a state.
func (f *failover) pause(v *laneRecovery) int64 {
	return min(max(resendTime, f.clock.now-v.since), resendMax)
}

// handleDown handles the report that a generation of a lane is out of service at the peer. The current generation
// leaves service here too. For the last one, the two sides can settle. A report for a settled one is answered again,
// because the response may have been lost.
func (f *failover) handleDown(l *lane, m *ctlMessage) {
	v, d := &l.recovery, &l.recovery.reports
	current, last := m.generation == l.generation, d.hasLast && m.generation == d.lastGeneration
	switch {
	case current && (v.state == laneIdle || (v.state == laneOffered && !v.reconnect.connected)):
		f.skipGeneration(l) // it carried nothing here
	case current && v.state != laneGone:
		d.peerDown, d.peerReceived = true, m.received
		f.laneDown(l, errPeerDown)
	case last && v.state == laneGone:
		d.peerDown, d.peerReceived = true, m.received
	case last && m.flags&ctlAnswer == 0:
		f.link.sendDown(l, ctlAnswer)
	}
}

// skipGeneration abandons a generation that carried nothing here, and reports that to the peer.
func (f *failover) skipGeneration(l *lane) {
	if l.recovery.state == laneOffered {
		f.withdraw(l, errPeerDown)
	}
	l.recovery.received = 0
	l.nextGeneration()
	f.link.sendDown(l, ctlAnswer)
}

var errPeerDown = errors.New("the peer has taken it out of service")

// settle resolves the requests in flight on a generation that is out of service on both sides. RC delivers in order,
// so the peer's count determines which of the requests that consume a receive have arrived.
func (f *failover) settle(l *lane) {
	v := &l.recovery
	doubtful := l.doubtful()
	arrived := v.reports.peerReceived - (v.sent - doubtful) // among the doubtful ones
	if int32(arrived) < 0 || arrived > doubtful {
		f.failControl("lane %d delivered %d requests of %d to %d sent", l.index, v.reports.peerReceived, v.sent-doubtful, v.sent)
		return
	}
	v.reports.peerDown, v.sent = false, 0
	l.become(laneIdle, f.clock.now, nil)
	v.due = f.clock.now + v.backoff // immediately, unless the lane was in service only briefly
	v.backoff = min(max(backoffMin, 2*v.backoff), backoffMax)
	s := f.send
	ended, messages, inDoubt := l.settle(arrived, s.sends.slots)
	s.inflight -= ended
	s.messages -= messages
	if l.idle() && l.role == roleData {
		s.uncovered.remove(l.index) // all of its data has arrived
	}
	if inDoubt && !f.setup.cfg.KeepAtomics {
		f.fail(l, fmt.Errorf("%w: %w", ErrAtomicInDoubt, v.cause))
	}
}

// ErrAtomicInDoubt means that a lane was lost with an atomic on it. The peer may or may not have executed the atomic, so it is not
// retried. WC.Err of the atomic wraps it and, without Config.KeepAtomics, VirtualQP.Err does too.
var ErrAtomicInDoubt = errors.New("an atomic is in doubt")

// roams reports whether data lanes may leave home: a side has a rail without a data lane, and both cards have the
// addresses of all rails.
func (u *setup) roams() bool {
	return len(u.lanes) < max(u.rails.Len(), u.remoteRails) && len(u.addresses) > 0 && len(u.remoteAddresses) > 0
}

// leads reports whether this side chooses the rails of lanes that may leave home: the side with the smaller
// incarnation or, if data lanes roam, the side with more rails.
func (u *setup) leads() bool {
	if here := u.rails.Len(); here != u.remoteRails && u.roams() {
		return here > u.remoteRails
	}
	return u.incarnation <= u.peer
}

// chooseRail returns the rail of a lane's next generation. A data lane stays at home unless lanes roam. The message
// and notify lanes move to a rail with a data lane in service, preferably home. Every other attempt leaves home,
// because an idle data lane counts as in service even if its rail is dead. The other side uses the rail that faces
// the offered one.
func (f *failover) chooseRail(l *lane) (rail uint8, ok bool) {
	u, v := f.setup, &l.recovery
	if l.role == roleData && !u.roams() {
		return v.home, true
	}
	if !u.leads() {
		if v.reconnect.offer == nil {
			return 0, false
		}
		return u.facing(v.reconnect.offer.rail), true
	}
	if l.role == roleData {
		return f.roam(l), true
	}
	rail = v.home
	for i, other := range u.lanes {
		if other.recovery.state != laneUp {
			continue
		}
		if other.rail == v.home {
			if v.attempts%2 == 0 {
				return v.home, true
			}
			continue
		}
		// Another rail each time, in case one does not work.
		if rail == v.home || uint64(i)%uint64(len(u.lanes)) == v.attempts%uint64(len(u.lanes)) {
			rail = other.rail
		}
	}
	return rail, true
}

// roam returns the rail of a roaming data lane's next generation. Data lanes leave home only while none of them is in
// service; otherwise the working one carries all requests. They alternate between home and the rails without a data
// lane, and skip a rail whose port is down.
func (f *failover) roam(l *lane) uint8 {
	u, v := f.setup, &l.recovery
	if slices.ContainsFunc(u.lanes, func(other *lane) bool { return other.recovery.state == laneUp }) {
		return v.home
	}
	rails := append(make([]uint8, 0, MaxRails), v.home)
	for i := len(u.lanes); i < u.rails.Len(); i++ {
		if !u.addresses[i].IsZero() && !u.remoteAddresses[i%u.remoteRails].IsZero() {
			rails = append(rails, uint8(i))
		}
	}
	for range rails {
		if rail := rails[v.attempts%uint64(len(rails))]; !u.rails.rails[rail].down() {
			return rail
		}
		v.attempts++
	}
	return v.home
}

// facing returns the local rail that faces a rail of the peer, according to the lanes' layout at Connect. More lanes
// would continue the layout.
func (u *setup) facing(remote uint8) uint8 {
	for _, l := range u.all {
		if l.recovery.remoteHome == remote {
			return l.recovery.home
		}
	}
	return remote % uint8(u.rails.Len())
}

// errReturning removes a working lane from service so that it can return home.
var errReturning = errors.New("it returns to its home rail")

// returnHome takes an idle lane on a foreign rail out of service, so that it is rebuilt at home. Atomics wait for
// that. A message or notify lane returns once a data lane is in service at home. A data lane cannot know whether home
// works, so it waits longer. Only the leading side does this.
func (f *failover) returnHome(l *lane) {
	u, v, age := f.setup, &l.recovery, f.clock.now-l.recovery.since
	if l.rail == v.home || !u.leads() || !l.idle() || age < backoffMax/8 {
		return
	}
	works := slices.ContainsFunc(u.lanes, func(other *lane) bool { return other.rail == v.home && other.recovery.state == laneUp })
	if l.role == roleData && !works && age >= backoffMax && f.clock.now >= v.due {
		v.due = f.clock.now + backoffMax/8
		works = !u.rails.rails[v.home].down()
	}
	if works {
		v.backoff, v.attempts = 0, 0
		f.laneDown(l, errReturning)
	}
}
