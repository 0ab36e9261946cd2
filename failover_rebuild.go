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

// This file brings lanes back: with a new QP and the next generation at both ends, which is tried
// with a probe before it carries requests.

// rebuildDue returns the time to rebuild an idle lane: after its back-off, or earlier if requests wait for it. They wait for the message and
// notify lanes and, while no data lane is in service, for the first data lane of each rail. Otherwise rails that flap in turn would have
// a long back-off when they are needed. In a long outage the pauses grow.
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

// rebuild makes the QP of the next generation and offers it to the peer.
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
		l.recvHead = l.recvTail // those that were posted go with the QP
		v.backoff = min(2*v.backoff, backoffMax)
		v.due = f.clock.now + f.jitter(v.backoff)
		return
	}
	v.sent, v.drained, v.reconnect.connected, v.reconnect.peerConnected = 0, l.head, false, false
	f.repeatOffer(l)
	f.connectOffered(l)
}

// renew replaces the QP of a lane by a new one, in INIT with its receives posted.
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
	_ = l.qp.Close() // a QP of a dead device may refuse, and is of no use
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

// moveTo gives a lane its new QP. What the lane did on another rail stays with that rail.
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

// withdraw takes back an offer that the peer has not accepted.
func (f *failover) withdraw(l *lane, cause error) {
	v := &l.recovery
	l.resetState()
	l.recvHead = l.recvTail
	l.become(laneIdle, f.clock.now, cause)
	v.backoff = min(max(backoffMin, 2*v.backoff), backoffMax)
	v.due = f.clock.now + f.jitter(v.backoff)
}

// jitter spreads attempts, so that many VirtualQPs do not come back at the same moment.
func (f *failover) jitter(d int64) int64 { return d + int64(f.random.Next()%uint64(d/2+1)) }

// repeatOffer offers the new QP, and sets the time to do so again.
func (f *failover) repeatOffer(l *lane) {
	l.recovery.due = f.clock.now + f.pause(&l.recovery)
	f.sendOffer(l, 0)
}

// sendOffer tells the peer the address of a lane's QP, and whether this side has the peer's.
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

// qpFingerprint tells a QP of a lane from others of the same generation.
func qpFingerprint(e *verbs.Endpoint) uint32 { return e.QPN ^ e.PSN<<8 }

// handleOffer takes the peer's address of a lane's next generation.
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
		t.offer = m // for when the Downs have been exchanged
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
			f.sendOffer(l, ctlAnswer) // this side's was lost
		}
	case laneDying:
	}
}

// allowsGID reports whether an offer's address was in the peer's card, or belongs to a rail that the card had no address of.
func (f *failover) allowsGID(l *lane, m *ctlMessage) bool {
	u, gid := f.setup, m.endpoint.GID
	if slices.Contains(u.remoteGIDs, gid) {
		return true
	}
	if f.railsWithoutGID&(1<<m.rail) == 0 || (u.cfg.CheckGID != nil && u.cfg.CheckGID(int(l.recovery.home), gid) != nil) {
		return false
	}
	f.railsWithoutGID &^= 1 << m.rail
	u.remoteGIDs = append(u.remoteGIDs, gid)
	return true
}

var errOtherQP = errors.New("the peer has made another QP")

// connectOffered connects a lane when the peer's address is known, and probes it when the peer is connected
// too.
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

// probe sends a WRITE of no bytes. It names no memory, and completes if the path and the peer's QP
// work.
func (f *failover) probe(l *lane) {
	if err := l.postControl(f.send.chain, kindProbe, verbs.OpRDMAWrite); err != nil {
		f.laneDown(l, err)
		return
	}
	l.become(laneProbing, f.clock.now, nil)
	f.awaitProbe(l, l.recovery.attemptTimeout())
}

// probed takes the completion of a probe.
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

// awaitProbe gives a probe a time limit.
func (f *failover) awaitProbe(l *lane, limit int64) {
	l.recovery.due, l.recovery.dueBarrier = f.clock.now+limit, f.setup.cq.barrier(l.rail)
}

// checkProbe takes a lane out of service whose probe has not completed in time. A completion in the CQ is in time.
func (f *failover) checkProbe(l *lane) {
	if v := &l.recovery; f.clock.now < v.due {
		v.dueBarrier = f.setup.cq.barrier(l.rail)
	} else if f.setup.cq.passed(l.rail, v.dueBarrier) {
		f.probeRail(l)
		f.laneDown(l, errProbeTimeout)
	}
}

// probeRail probes the idle lanes in service on the rail of a lane that got no answer. They would not notice that the rail
// is dead, and other lanes would be rebuilt next to them.
func (f *failover) probeRail(silent *lane) {
	for _, l := range f.setup.all {
		v := &l.recovery
		if l != silent && l.rail == silent.rail && v.state == laneUp && !v.probeSent && l.idle() {
			v.probeSent = l.postControl(f.send.chain, kindProbe, verbs.OpRDMAWrite) == nil // otherwise, a request will show it
			f.awaitProbe(l, attemptMin)
		}
	}
}

// restore takes a lane into service again. Entries of its last generation that no other lane has
// taken over go first.
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

// attemptTimeout is the time limit of an offer and of a probe. The next attempt may be on another rail. The limit grows with the back-off,
// because the peer or the path may be slow.
func (v *laneRecovery) attemptTimeout() int64 { return max(attemptMin, v.backoff) }

const attemptMin = int64(100 * time.Millisecond)

var (
	errNoAnswer     = errors.New("the peer does not answer")
	errProbeTimeout = errors.New("the path to the peer is silent")
)

// laneState is where a lane is in its life.
//
//	         error, event, peer's Down             drained             peer's Down
//	up  ------------------------------->  dying ----------->  gone  --------------> idle
//	 ^                                      ^                                         |
//	 |  probe came back                     | any error                              | back-off,
//	 +------------------  probing  <--------+--- offered <---------------------------+ peer's offer
//	                        both have the other's address       new QP, next generation
//
// An offer that the peer does not accept is withdrawn: offered goes back to idle. When the
// VirtualQP fails, lanes that are not up go to gone at once.
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

// String names the state.
func (s laneState) String() string { return laneStateNames[s] }

// transitions has, for each state, the set of states that may follow, with bit n for state n.
var transitions = [...]uint8{
	laneUp:      1<<laneDying | 1<<laneGone,
	laneDying:   1 << laneGone,
	laneGone:    1 << laneIdle,
	laneIdle:    1 << laneOffered,
	laneOffered: 1<<laneProbing | 1<<laneDying | 1<<laneGone | 1<<laneIdle,
	laneProbing: 1<<laneUp | 1<<laneDying | 1<<laneGone,
}

// laneRecovery is what a lane keeps for failover.
type laneRecovery struct {
	state laneState // written by lane.become only, under VirtualQP.mu
	since int64     // when the lane came to this state
	cause error     // why the lane left service; nil while it is up; written under VirtualQP.mu
	// unsent is why a control message about the lane could not be sent; nil once its offer was sent. It is
	// written under VirtualQP.mu.
	unsent error
	due    int64 // when the next step is to be taken, or a message sent again
	// backoff is the pause before the next attempt to rebuild the lane; 0 after steadyTime in
	// service.
	backoff     int64
	downBarrier barrier // the barrier of the rail from when the lane went out of service
	dueBarrier  barrier // the barrier of the rail from when the time to drain, or for a probe, was over
	probeSent   bool    // a probe is in flight although the lane is in service

	home       uint8 // the rail that the lane was made on, and returns to
	remoteHome uint8 // the rail of the peer's end when the two sides connected

	// sent counts the requests of this generation that the NIC took and that consume a receive
	// of the peer.
	sent     uint32
	received uint32 // counts the receives that this generation delivered
	// failing says that a request of this generation failed. Those from it on are in doubt.
	failing bool
	// drained is one more than the number of the last entry with a completion; valid while
	// failing.
	drained uint32

	reports   downReports // what the two ends said of generations out of service
	reconnect reconnect   // how far the two ends are with the next QP
	// successor is the lane that takes over the rest of the ledger and that is reserved for it; nil
	// if there is none.
	successor *lane

	lostAt int64  // when the lane went out of service
	deaths uint64 // counts how often the lane went out of service; written under VirtualQP.mu
	// replayed counts the requests that other lanes took over or the next generation repeats.
	replayed     counter.Counter
	attempts     uint64 // counts how often a new QP was made
	countsBefore Counts // what the lane had done when it came to its rail; written under VirtualQP.mu
}

// downReports is what the two ends of a lane said of generations that are out of service.
type downReports struct {
	peerDown       bool   // the peer took the current generation out of service
	peerReceived   uint32 // how many receives the peer's end delivered; valid with peerDown
	unannounced    bool   // this side has not announced the last generation's end yet
	hasLast        bool   // lastGeneration and lastReceived are valid
	lastGeneration uint16 // the generation before the current one
	lastReceived   uint32 // how many receives lastGeneration delivered at this side
}

// reconnect is how far the two ends of a lane are with the QPs of a generation.
type reconnect struct {
	offer         *ctlMessage // the peer's address; nil if it is not known
	ownQP         uint32      // the qpName of the QP that this side offered last
	peerConnected bool        // the peer has this side's address
	connected     bool        // the QP is connected to the one in offer
}

// become takes the lane to another state. It is the only writer of the state. A nil cause keeps
// the one that the lane has until it is up.
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

// downCause returns why the lane is out of service, and what keeps it there if that is known.
func (v *laneRecovery) downCause() error {
	if v.unsent == nil || v.cause == nil {
		return v.cause
	}
	return fmt.Errorf("%w; a control message about it could not be sent: %w", v.cause, v.unsent)
}

// mayReceive reports whether the lane's receives are with a NIC that may fill them.
func (v *laneRecovery) mayReceive() bool {
	return v.state == laneUp || v.state == laneOffered || v.state == laneProbing
}
