package ibverbx

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"ibverbx/internal/counter"
	"ibverbx/internal/debugcheck"
	"ibverbx/verbs"
)

// This file returns lanes to service: each side creates a QP for the next generation, and a probe tests it before it
// carries requests.

// rebuildDue returns the time to rebuild an idle lane: after its back-off, or earlier if requests wait for it. They
// wait for the message and notify lanes and, while no data lane is in service, for the first data lane of each rail.
// Otherwise, rails that flap alternately would have a long back-off when they are needed. In a long outage the pauses
// grow.
func (f *failover) rebuildDue(l *lane) int64 {
	v, pause := &l.recovery, urgentTime
	switch {
	case f.strandedSince != 0:
		pause = max(pause, (f.clock.now-f.strandedSince)/8)
		if l.role == roleData && int(l.index) >= f.setup.rails.Len() {
			return v.due
		}
	case l.role == roleData:
		return v.due
	}
	return min(v.due, v.since+pause)
}

// rebuild creates the QP of the next generation and offers it to the peer.
func (f *failover) rebuild(l *lane) {
	v := &l.recovery
	rail, ok := f.chooseRail(l)
	if !ok {
		return
	}
	v.attempts++
	l.become(laneOffered, f.clock.now, nil) // so that renew posts its receives
	if err := f.renew(l, rail); err != nil {
		l.become(laneIdle, f.clock.now, err)
		l.recvHead = l.recvTail // posted receives are lost with the QP
		v.backoff = min(2*v.backoff, backoffMax)
		v.due = f.clock.now + f.jitter(v.backoff)
		return
	}
	v.sent, v.drained, v.reconnect.connected, v.reconnect.peerConnected = 0, l.head, false, false
	f.repeatOffer(l)
	f.connectOffered(l)
}

// renew replaces a lane's QP with a new one, in INIT with its receives posted.
func (f *failover) renew(l *lane, rail uint8) error {
	u := f.setup
	lc := laneConfig{index: int(l.index), rail: int(rail), role: l.role, recvs: int(l.recvDepth)}
	if rail != l.rail {
		if err := u.cq.reserve(int(rail), u.cfg.LaneDepth+lc.recvs); err != nil {
			return err
		}
	}
	qp, queue, err := u.createQP(lc)
	if err != nil {
		if rail != l.rail {
			u.cq.release(int(rail), u.cfg.LaneDepth+lc.recvs)
		}
		return err
	}
	u.cq.routes[l.rail].Delete(l.num)
	_ = l.qp.Close()        // may fail on a dead device
	_ = u.cq.closeRetired() // those that other QPs use stay
	u.pool.leave(l)
	u.pool.settle()
	l.queue = queue
	if rail != l.rail {
		u.cq.release(int(l.rail), u.cfg.LaneDepth+lc.recvs)
	}
	f.send.records.refresh(rail)
	f.moveTo(l, qp, rail)
	u.cq.routes[rail].Set(l.num, l)
	return f.recv.prepare(l)
}

// moveTo installs a lane's new QP. Its counts on another rail stay with that rail.
func (f *failover) moveTo(l *lane, qp verbs.QP, rail uint8) {
	l.owner.mu.Lock()
	defer l.owner.mu.Unlock()
	if rail != l.rail {
		counts := l.counts.load()
		there := counts.since(&l.recovery.countsBefore)
		f.railPast[l.rail].add(&there)
		l.recovery.countsBefore = counts
		f.lossReport.clearLoss(f.setup.lanes, l.rail)
	}
	l.qp, l.num, l.rail = qp, qp.Num(), rail
}

// withdraw revokes an offer that the peer has not accepted.
func (f *failover) withdraw(l *lane, cause error) {
	v := &l.recovery
	l.resetState()
	l.recvHead = l.recvTail
	l.become(laneIdle, f.clock.now, cause)
	v.backoff = min(max(backoffMin, 2*v.backoff), backoffMax)
	v.due = f.clock.now + f.jitter(v.backoff)
}

// jitter randomizes a delay, so that VirtualQPs do not rebuild lanes simultaneously.
func (f *failover) jitter(d int64) int64 { return d + int64(f.random.Next()%uint64(d/2+1)) }

// repeatOffer offers the new QP, and schedules the retransmission.
func (f *failover) repeatOffer(l *lane) {
	l.recovery.due = f.clock.now + f.pause(&l.recovery)
	f.sendOffer(l, 0)
}

// sendOffer sends the address of a lane's QP to the peer, and whether this side is connected to the peer's.
func (f *failover) sendOffer(l *lane, flags uint16) {
	e, err := l.qp.Endpoint()
	if err != nil {
		f.laneDown(l, err)
		return
	}
	v, has := &l.recovery.reconnect, uint32(0)
	if v.ownQP = qpFingerprint(&e); v.connected {
		flags |= ctlConnected
		has = qpFingerprint(&v.offer.endpoint)
	}
	f.link.sendFor(l, &ctlMessage{kind: ctlOffer, generation: l.generation, flags: flags, received: has, rail: l.rail, endpoint: e})
}

// qpFingerprint distinguishes a lane's QPs of the same generation.
func qpFingerprint(e *verbs.Endpoint) uint32 { return e.QPN ^ e.PSN<<8 }

// handleOffer handles the peer's address of a lane's next generation.
func (f *failover) handleOffer(l *lane, m *ctlMessage) {
	v, d, t := &l.recovery, &l.recovery.reports, &l.recovery.reconnect
	switch {
	case int(m.rail) >= f.setup.remoteRails:
		f.failControl("lane %d is offered on rail %d of %d", l.index, m.rail, f.setup.remoteRails)
		return
	case !f.allowsGID(l, m):
		f.failControl("lane %d is offered at %v, which was not in the card", l.index, m.endpoint.GID)
		return
	case d.hasLast && m.generation == d.lastGeneration && v.state != laneGone:
		f.link.sendDown(l, ctlAnswer) // the peer is one generation behind
		return
	case m.generation != l.generation || v.state == laneDying:
		return
	}
	// The peer may be connected to a QP that was withdrawn.
	misled := m.flags&ctlConnected != 0 && (v.state == laneIdle || m.received != t.ownQP)
	other := t.offer != nil && t.connected && qpFingerprint(&m.endpoint) != qpFingerprint(&t.offer.endpoint)
	switch v.state {
	case laneGone:
		t.offer = m // for after the exchange of Downs
	case laneIdle:
		if misled {
			f.skipGeneration(l)
			return
		}
		t.offer = m
		v.due = f.clock.now
	case laneOffered:
		switch {
		case misled && !t.connected:
			f.skipGeneration(l)
			return
		case misled || other:
			f.laneDown(l, errOtherQP)
			return
		case !t.connected:
			t.offer = m
		}
		t.peerConnected = t.peerConnected || m.flags&ctlConnected != 0
		f.connectOffered(l)
	case laneProbing, laneUp:
		if m.flags&ctlAnswer == 0 && !misled && !other {
			f.sendOffer(l, ctlAnswer) // the last one was lost
		}
	case laneDying:
	}
}

// allowsGID reports whether an offer's address was in the peer's card, or is the first one of a rail without an
// address in the card.
func (f *failover) allowsGID(l *lane, m *ctlMessage) bool {
	u, gid := f.setup, m.endpoint.GID
	if slices.Contains(u.remoteGIDs, gid) || !gid.IsZero() && slices.Contains(u.remoteAddresses, gid) {
		return true
	}
	if f.railsWithoutGID&(1<<m.rail) == 0 || (u.cfg.CheckGID != nil && u.cfg.CheckGID(int(l.recovery.home), gid) != nil) {
		return false
	}
	f.railsWithoutGID &^= 1 << m.rail
	u.remoteGIDs = append(u.remoteGIDs, gid)
	return true
}

// checkGID checks an allowed address. The caller of Connect has checked the lanes' addresses. Others may be out of this side's reach.
func (f *failover) checkGID(l *lane, gid verbs.GID) error {
	u := f.setup
	if u.cfg.CheckGID == nil || slices.Contains(u.remoteGIDs, gid) {
		return nil
	}
	if err := u.cfg.CheckGID(int(l.rail), gid); err != nil {
		return err
	}
	u.remoteGIDs = append(u.remoteGIDs, gid)
	return nil
}

var errOtherQP = errors.New("the peer has replaced its QP")

// connectOffered connects a lane once the peer's address is known, and probes it once the peer is connected too.
func (f *failover) connectOffered(l *lane) {
	t := &l.recovery.reconnect
	if l.recovery.state != laneOffered || t.offer == nil {
		return
	}
	if !t.connected {
		if !f.send.canMove(l, l.rail, t.offer.rail) {
			f.withdraw(l, errUnregistered)
			return
		}
		if err := f.checkGID(l, t.offer.endpoint.GID); err != nil {
			f.withdraw(l, err)
			return
		}
		if err := l.qp.Connect(t.offer.endpoint); err != nil {
			f.laneDown(l, fmt.Errorf("connect: %w", err))
			return
		}
		l.remoteRail = t.offer.rail
		t.connected = true
		t.peerConnected = t.offer.flags&ctlConnected != 0
		f.repeatOffer(l)
	}
	if l.recovery.state == laneOffered && t.peerConnected { // sending the offer may have failed
		f.probe(l)
	}
}

// probe posts an empty WRITE. It does not refer to memory, and completes if the path and the peer's QP work.
func (f *failover) probe(l *lane) {
	if err := l.postControl(f.send.chain, kindProbe, verbs.OpRDMAWrite); err != nil {
		f.laneDown(l, err)
		return
	}
	l.become(laneProbing, f.clock.now, nil)
	f.awaitProbe(l, l.recovery.attemptTimeout())
}

// probed handles the completion of a probe.
func (f *failover) probed(l *lane, wc *verbs.WC, t tag) {
	switch state := l.recovery.state; {
	case !l.owns(t) || (state != laneProbing && (state != laneUp || !f.recovers())):
		f.setup.cq.countStale(l)
	case wc.Status != verbs.StatusSuccess:
		f.requestFailed(l, wc.Status)
	case state == laneProbing:
		f.restore(l)
	default:
		l.recovery.probeSent = false
	}
}

// awaitProbe sets the time limit of a probe.
func (f *failover) awaitProbe(l *lane, limit int64) {
	l.recovery.due, l.recovery.dueBarrier = f.clock.now+limit, f.setup.cq.barrier(l.rail)
}

// checkProbe takes a lane out of service whose probe has timed out. A completion in the CQ is in time.
func (f *failover) checkProbe(l *lane) {
	if v := &l.recovery; f.clock.now < v.due {
		v.dueBarrier = f.setup.cq.barrier(l.rail)
	} else if f.setup.cq.passed(l.rail, v.dueBarrier) {
		f.probeRail(l)
		f.laneDown(l, errProbeTimeout)
	}
}

// probeRail probes the idle lanes on the rail of an unresponsive lane. Without traffic they would not notice that the
// rail is dead, and other lanes would be rebuilt next to them.
func (f *failover) probeRail(silent *lane) {
	for _, l := range f.setup.all {
		v := &l.recovery
		if l != silent && l.rail == silent.rail && v.state == laneUp && !v.probeSent && l.idle() {
			v.probeSent = l.postControl(f.send.chain, kindProbe, verbs.OpRDMAWrite) == nil // otherwise a request will fail
			f.awaitProbe(l, attemptMin)
		}
	}
}

// restore returns a lane to service. Remaining entries of its last generation are posted first.
func (f *failover) restore(l *lane) {
	v := &l.recovery
	l.become(laneUp, f.clock.now, nil)
	l.release()
	l.blocked, v.unsent, v.probeSent = 0, nil, false
	l.posted = l.head
	v.replayed.Add(uint64(l.load()))
	l.estimate = rateEstimate{}
	if !l.idle() {
		f.lossReport.failedOver(f, l)
	}
	f.out--
	for _, other := range f.setup.all {
		if other.rail == l.rail && other.recovery.state == laneIdle {
			other.recovery.due = f.clock.now // the rail works
		}
	}
	f.displaced = slices.ContainsFunc(f.setup.all, func(l *lane) bool { return l.rail != l.recovery.home })
	f.notice(EventLaneUp, l, nil)
	if !l.idle() && !l.listed {
		f.send.markStaged(l)
	}
	f.setup.queueReport()
}

// attemptTimeout is the time limit of an offer and of a probe; the next attempt may use another rail. It grows with
// the back-off, because the peer or the path may be slow.
func (v *laneRecovery) attemptTimeout() int64 { return max(attemptMin, v.backoff) }

const attemptMin = int64(100 * time.Millisecond)

var (
	errNoAnswer     = errors.New("the peer does not answer")
	errProbeTimeout = errors.New("the probe of its path timed out")
)

// laneState is a state of a lane:
//
//	         error, event, peer's Down             drained             peer's Down
//	up  ------------------------------->  dying ----------->  gone  --------------> idle
//	 ^                                      ^                                         |
//	 |  probe completed                     | any error                              | back-off,
//	 +------------------  probing  <--------+--- offered <---------------------------+ peer's offer
//	                        both have the other's address       new QP, next generation
//
// An offer that the peer does not accept is withdrawn: offered returns to idle. When the
// VirtualQP fails, lanes that are not up move to gone immediately.
type laneState uint8

const (
	laneUp      laneState = iota // The lane is in service.
	laneDying                    // The QP is in ERR, and its completions are being drained.
	laneGone                     // The QP is in RESET. The peer's QP may still be in service.
	laneIdle                     // Both QPs are out of service, so nothing late can arrive.
	laneOffered                  // A new QP waits for the peer's.
	laneProbing                  // The new QPs are connected, and a probe is in flight.
)

var laneStateNames = [...]string{"up", "dying", "gone", "idle", "offered", "probing"}

func (s laneState) String() string { return laneStateNames[s] }

// transitions holds the set of valid successors of each state, with bit n for state n.
var transitions = [...]uint8{
	laneUp:      1<<laneDying | 1<<laneGone,
	laneDying:   1 << laneGone,
	laneGone:    1 << laneIdle,
	laneIdle:    1 << laneOffered,
	laneOffered: 1<<laneProbing | 1<<laneDying | 1<<laneGone | 1<<laneIdle,
	laneProbing: 1<<laneUp | 1<<laneDying | 1<<laneGone,
}

// laneRecovery is a lane's state of failover.
type laneRecovery struct {
	state laneState // written only by lane.become, under VirtualQP.mu
	since int64     // time of the last transition
	cause error     // reason why the lane left service; nil while it is up; written under VirtualQP.mu
	// unsent is the error of a control message about the lane; nil after an offer was sent. It is written under
	// VirtualQP.mu.
	unsent error
	due    int64 // time of the next step or retransmission
	// backoff is the pause before the next rebuild attempt; 0 after steadyTime in service.
	backoff     int64
	downBarrier barrier // barrier of the rail, set when the lane left service
	dueBarrier  barrier // barrier of the rail, set when the time to drain or the probe's time limit expired
	probeSent   bool    // the lane is in service, and a probe is in flight

	home       uint8 // the rail that the lane was created on, and returns to
	remoteHome uint8 // the rail of the peer's QP at Connect

	// sent counts this generation's requests on the NIC that consume a receive at the peer.
	sent     uint32
	received uint32 // receives delivered by this generation
	// failing is set once a request of this generation has failed. It and later ones are in doubt.
	failing bool
	// drained is one more than the last entry with a completion; valid while failing.
	drained uint32

	reports   downReports // reports of both sides on generations out of service
	reconnect reconnect   // progress towards the next QP
	// successor is the lane reserved for the ledger's entries, or nil.
	successor *lane

	lostAt int64  // time of the last loss
	deaths uint64 // number of losses; written under VirtualQP.mu
	// replayed counts the requests that other lanes took over or the next generation retransmits.
	replayed     counter.Counter
	attempts     uint64 // number of rebuild attempts
	countsBefore Counts // the lane's counts when it moved to its rail; written under VirtualQP.mu
}

// downReports holds the reports of both sides on generations of a lane that are out of service.
type downReports struct {
	peerDown       bool   // the current generation is out of service at the peer
	peerReceived   uint32 // receives that the peer's QP delivered; valid with peerDown
	unannounced    bool   // the end of the last generation was not reported to the peer yet
	hasLast        bool   // lastGeneration and lastReceived are valid
	lastGeneration uint16 // the generation before the current one
	lastReceived   uint32 // receives that lastGeneration delivered here
}

// reconnect is the state of the handshake for a lane's next QPs.
type reconnect struct {
	offer         *ctlMessage // the peer's address; nil if unknown
	ownQP         uint32      // qpFingerprint of the last QP offered
	peerConnected bool        // the peer's QP is connected to this side's
	connected     bool        // the QP is connected to the one in offer
}

// become moves the lane to another state. It is the only writer of the state. A nil cause keeps the previous one,
// unless the lane is up.
func (l *lane) become(state laneState, now int64, cause error) {
	v := &l.recovery
	if debugcheck.On && transitions[v.state]&(1<<state) == 0 {
		panic(fmt.Sprintf("ibverbx: lane %d goes from %s to %s", l.index, v.state, state))
	}
	l.owner.mu.Lock()
	defer l.owner.mu.Unlock()
	v.state, v.since = state, now
	if state == laneDying {
		v.deaths++
	}
	if cause != nil || state == laneUp {
		v.cause = cause
	}
}

// downCause returns the reason why the lane is out of service, with the control error that keeps it there, if any.
func (v *laneRecovery) downCause() error {
	if v.unsent == nil || v.cause == nil {
		return v.cause
	}
	return fmt.Errorf("%w; a control message about it could not be sent: %w", v.cause, v.unsent)
}

// mayReceive reports whether a NIC may fill the lane's receives.
func (v *laneRecovery) mayReceive() bool {
	return v.state == laneUp || v.state == laneOffered || v.state == laneProbing
}
