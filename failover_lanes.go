package ibverbx

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"time"

	"ibverbx/internal/xorshift"
	"ibverbx/verbs"
)

// failover owns the state of the VirtualQP and of its lanes. With Config.Control it takes lanes out
// of service (this file), agrees with the peer on received data (failover_agree.go) and rebuilds lanes
// (failover_rebuild.go). Without it, the loss of a lane ends the VirtualQP.
type failover struct {
	setup *setup
	clock *cachedClock
	send  *sender
	recv  *receiver
	// random spreads the attempts to rebuild lanes.
	random *xorshift.Source
	// link carries control messages.
	link controlLink
	// watchdog watches the oldest request.
	watchdog watchdog

	state        qpState
	err          error    // what ended the VirtualQP; nil before that; written under VirtualQP.mu
	errShown     bool     // a failed completion, or an error of Wait, has shown err to the program
	failBarriers barriers // the barriers of the rails from when the VirtualQP failed
	out          int      // counts the lanes that are out of service
	// strandedSince is the time at which drive first saw all data lanes out of service. Otherwise it is 0.
	strandedSince int64
	displaced     bool // a lane was rebuilt on another rail at some time
	// nextDrive is when a poll that finds completions looks at control messages and timers too.
	nextDrive       int64
	railsWithoutGID uint8            // the peer's rails, one bit each, that its card had no address of
	peerExit        peerExit         // a peer that has gone
	handled         [MaxRails]losses // what was handled of the rails' events
	railPast        [MaxRails]Counts // what lanes did on a rail that they left; written under VirtualQP.mu
	lossReport      *lossReport      // nil before the first loss of a lane; written under VirtualQP.mu
}

// Times of failover, in nanoseconds.
const (
	drainTime   = int64(100 * time.Millisecond) // longest time for a NIC to flush a QP in ERR
	resendTime  = int64(2 * time.Millisecond)   // first pause before a control message is sent again
	resendMax   = int64(100 * time.Millisecond) // longest such pause
	refusalTime = int64(2 * time.Millisecond)   // time for a NAK that a control message must not overtake
	backoffMin  = int64(1 * time.Millisecond)   // first pause before a lane is rebuilt again
	backoffMax  = int64(2 * time.Second)        // longest such pause
	urgentTime  = int64(25 * time.Millisecond)  // longest such pause of a lane that requests wait for
	steadyTime  = int64(10 * time.Second)       // time in service after which a lane's failures are forgotten
	driveCalm   = int64(50 * time.Microsecond)  // between two looks at control and timers
	driveBusy   = int64(5 * time.Microsecond)   // the same while lanes are out of service
)

// driveEvery is how many polls with completions are between two looks at control and timers.
const driveEvery = 64

// recovers reports whether the VirtualQP can lose a lane.
func (f *failover) recovers() bool { return f.setup.cfg.Control != nil && f.state <= stateConnected }

// survives reports whether the VirtualQP can continue after a request of a lane failed with status.
// A status that the program caused would come again on another lane. If the port is down, though,
// drivers report any status (Soft-RoCE: LOC_QP_OP_ERR).
func (f *failover) survives(l *lane, status verbs.Status) bool {
	if !f.recovers() {
		return false
	}
	switch status {
	case verbs.StatusRetryExcErr, verbs.StatusRNRRetryExcErr, verbs.StatusWRFlushErr:
		return true
	default:
	}
	return f.setup.rails.rails[l.rail].down()
}

// laneBroken handles a lane whose NIC takes no requests any more.
func (f *failover) laneBroken(l *lane, err error) {
	if !f.recovers() || errors.Is(err, verbs.ErrInvalid) {
		f.fail(l, err)
		return
	}
	f.laneDown(l, err)
}

// laneDown takes a lane out of service at once: it gets no more requests, and its QP goes to ERR.
func (f *failover) laneDown(l *lane, cause error) {
	v, now := &l.recovery, f.clock.now
	switch v.state {
	case laneDying, laneGone, laneIdle:
		return
	case laneOffered:
		if !v.reconnect.connected {
			// The peer cannot have reached it, so the same generation is tried again.
			f.withdraw(l, cause)
			return
		}
	case laneUp:
		f.out++
		f.nextDrive = now
		f.setup.cq.ready.add(f.setup.owner)
		if now-v.since > steadyTime {
			v.backoff = 0
		}
		if l.role == roleData {
			v.attempts = 0 // home is tried first
		}
		v.lostAt = now
		f.notice(EventLaneDown, l, cause)
	case laneProbing:
	}
	l.release()
	l.become(laneDying, now, cause)
	v.downBarrier = f.setup.cq.barrier(l.rail)
	v.due, v.dueBarrier = now+drainTime, v.downBarrier
	l.blocked |= blockDown
	l.errState()
	f.setup.queueReport()
}

// requestFailed takes a lane out of service because a request of it failed.
func (f *failover) requestFailed(l *lane, status verbs.Status) {
	if status == verbs.StatusRetryExcErr {
		f.probeRail(l)
	}
	f.laneDown(l, statusError(status))
}

// failed ends the VirtualQP because a request of a lane failed.
func (f *failover) failed(l *lane, status verbs.Status) {
	if f.err == nil {
		f.fail(l, statusError(status))
	}
}

// statusError puts the status of a lane's first failed completion into words. A flush as the first failure
// says that no request is to blame.
func statusError(status verbs.Status) error {
	if status == verbs.StatusWRFlushErr {
		return errQPFatal
	}
	return fmt.Errorf("%s: %s", status, status.Cause())
}

// fail ends the VirtualQP. The error is visible at once, every lane stops, and outstanding requests
// are flushed. Fragments that a NIC has end when the NIC gives them back, so that no buffer is
// touched after its completion. l is the lane to blame, nil if it is the peer or no single lane.
func (f *failover) fail(l *lane, cause error) {
	if f.err != nil || f.state == stateClosed {
		return
	}
	e, where := Event{Kind: EventFailed, QP: f.setup.owner, Lane: -1, Rail: -1}, "connection"
	if l != nil {
		e.Lane, e.Rail = int(l.index), int(l.rail)
		where = fmt.Sprintf("lane %d on rail %d (%s)", l.index, l.rail, f.setup.rails.rails[l.rail].name)
	}
	f.setup.owner.mu.Lock()
	f.err = f.setup.opError(where, cause)
	f.setup.owner.mu.Unlock()
	f.state = stateFailed
	f.setup.cq.failed = append(f.setup.cq.failed, f.setup.owner)
	f.failBarriers = f.setup.cq.barriers()
	e.Err = f.err
	f.setup.cq.notice(&e, slog.LevelError)
	for _, l := range f.setup.all {
		if l.recovery.state == laneUp {
			l.errState()
		} else {
			f.abandon(l)
		}
	}
	f.link.sendReset()
	f.flush()
}

// abandon takes a lane out of service for good, because the VirtualQP has failed. No NIC writes to memory for its entries from here on.
func (f *failover) abandon(l *lane) {
	if l.recovery.state != laneGone && l.recovery.state != laneIdle {
		l.stopQP()
		f.retireGeneration(l)
	}
	l.release()
	l.posted = l.head
}

// flush ends what no NIC has.
func (f *failover) flush() {
	f.send.flush()
	f.recv.flush()
	f.setup.queueReport()
}

// unsettled reports whether a VirtualQP that has failed must be looked at again although no
// completion need come: a lane could not be marked yet, or receives wait for what may be in a CQ.
func (f *failover) unsettled() bool {
	return f.send.needsMarker() || (f.setup.shared != nil && f.recv.notifications.Len() > 0) || f.recv.pooledLane() != nil
}

// reassign moves the entries of data lanes whose last generation is settled to one other lane each, all at once and in
// order, so that a record of Tally stays behind the fragments that it covers. If that lane has too
// many entries of its own, it is reserved and gets nothing else until it has room. The message and
// notify lanes have no successors: their entries wait for the next generation.
func (f *failover) reassign() {
	for _, l := range f.setup.lanes {
		v := &l.recovery
		if l.idle() || (v.state != laneIdle && v.state != laneOffered && v.state != laneProbing) {
			continue
		}
		if v.successor != nil && v.successor.out() {
			l.release()
		}
		if v.successor == nil {
			v.successor = f.roomiest(l)
		}
		h := v.successor
		if h == nil {
			continue
		}
		// An idle successor takes any number: its ledger grows, and its NIC refuses what is too much.
		if h.depth-min(h.depth, h.load()) < l.load() && !h.idle() {
			h.blocked |= blockReserved
			continue
		}
		l.release()
		f.lossReport.failedOver(f, l)
		f.moveAll(l, h)
	}
}

// roomiest returns the unreserved data lane in service with the fewest entries that can take over the entries of lost, or nil.
func (f *failover) roomiest(lost *lane) (best *lane) {
	for _, l := range f.setup.lanes {
		if l.blocked == 0 && (best == nil || l.load() < best.load()) && f.send.canMove(lost, l.rail, l.remoteRail) {
			best = l
		}
	}
	return best
}

// release gives up the successor that a lane has reserved.
func (l *lane) release() {
	if h := l.recovery.successor; h != nil {
		h.blocked &^= blockReserved
		l.recovery.successor = nil
	}
}

// moveAll moves all entries of a lane to another one.
func (f *failover) moveAll(l, h *lane) {
	s := f.send
	h.grow(2*l.load() + 1) // each with a record, and one more
	for !l.idle() {
		e := l.pop()
		s.inflight--
		l.recovery.replayed.Add(1)
		behind, more := f.setup.scheme.beforeMove(&e)
		if !e.consumes() && e.kind() <= kindData && s.sends.of(&e).op != verbs.OpRDMARead {
			s.uncovered.add(h.index)
		}
		s.stage(h, e.head, e.off, e.bytes, e.imm)
		if more {
			s.stage(h, behind.head, behind.off, behind.bytes, behind.imm)
		}
	}
	s.uncovered.remove(l.index)
	f.setup.scheme.afterMove(l, h)
}

// drive does what is due: control messages, lanes that are dying or coming back, and deadlines.
func (f *failover) drive() {
	if f.state != stateConnected && f.state != stateFailed {
		return
	}
	f.clock.tick()
	f.receiveControl()
	if f.nextDrive = f.clock.now + driveCalm; f.out > 0 {
		f.nextDrive = f.clock.now + driveBusy
	}
	if f.peerExit.check(f); f.state != stateConnected {
		return
	}
	f.watchRails()
	if f.out > 0 || f.displaced {
		if f.lossReport != nil && f.lossReport.outage.pending && f.clock.now-f.lossReport.outage.since > degradedAfter {
			f.lossReport.logDegraded()
		}
		if slices.ContainsFunc(f.setup.lanes, func(l *lane) bool { return l.recovery.state == laneUp }) {
			f.strandedSince = 0
		} else if f.strandedSince == 0 {
			f.strandedSince = f.clock.now
		}
		for _, l := range f.setup.all {
			f.driveLane(l)
			if f.state != stateConnected {
				return
			}
		}
		f.setup.queueReport()
	}
	f.watchRequests()
	f.schedule()
}

// schedule sets the timer for the oldest request, or drops it if there is none.
func (f *failover) schedule() {
	q, r := f.setup.owner, &f.setup.cq.ready
	at := f.requestDue()
	switch {
	case at == math.MaxInt64 && q.timer > 0:
		r.timers.Remove(q.timer - 1)
	case at != math.MaxInt64 && q.timer == 0:
		r.setTimer(q, at)
	}
}

// driveLane takes the next step of a lane that is out of service.
func (f *failover) driveLane(l *lane) {
	v, now := &l.recovery, f.clock.now
	switch v.state {
	case laneDying:
		// RESET takes completions out of the CQ, so those that the NIC has acknowledged must have
		// been polled before.
		if now < v.due {
			v.dueBarrier = f.setup.cq.barrier(l.rail)
		}
		if f.drained(l) || f.setup.cq.passed(l.rail, v.dueBarrier) {
			f.reset(l)
		}
	case laneGone:
		if v.reports.peerDown {
			if v.reports.unannounced {
				f.sendDown(l)
			}
			f.settle(l)
		} else if now >= v.due {
			f.sendDown(l)
		}
	case laneIdle:
		if now >= f.rebuildDue(l) {
			f.rebuild(l)
		}
	case laneOffered:
		if !v.reconnect.connected && now-v.since > v.attemptTimeout() {
			cause := errNoAnswer
			if v.unsent != nil {
				cause = nil // the peer could not answer
			}
			f.withdraw(l, cause)
			return
		}
		if now >= v.due {
			f.repeatOffer(l)
		}
		f.connectOffered(l)
	case laneUp:
		if f.returnHome(l); v.state == laneUp && v.probeSent {
			f.checkProbe(l)
		}
	case laneProbing:
		f.checkProbe(l)
	}
}

// drained reports whether the NIC has given back everything that a dying lane had.
func (f *failover) drained(l *lane) bool {
	v := &l.recovery
	if l.hasOutstanding() {
		return false
	}
	if f.setup.srqOf(l.role) != ownReceives {
		return f.setup.cq.passed(l.rail, v.downBarrier)
	}
	return l.recvHead == l.recvTail
}

// reset takes a dying lane's QP to RESET. From here on nothing that this generation sent or asked
// for can touch memory at this side. Then the peer is told, at once or, if this QP refused a request
// of the peer, a while later: the peer must learn of the refusal from its NIC, which does not report
// it if the peer takes the lane out of service first. It would repeat the request on another lane.
func (f *failover) reset(l *lane) {
	v := &l.recovery
	refused := f.setup.rails.watch.hasRefused(int(l.rail), l.qp.Num())
	l.resetState()
	f.retireGeneration(l)
	if v.due, v.reports.unannounced = f.clock.now, refused; refused {
		v.due += refusalTime
		return
	}
	f.sendDown(l)
}

// retireGeneration ends a generation at this side. Completions of it that are still in a CQ bear its
// number and are dropped.
func (f *failover) retireGeneration(l *lane) {
	l.become(laneGone, f.clock.now, nil)
	l.nextGeneration()
	l.recvHead = l.recvTail
	l.blocked &^= blockRefused
	l.unsignaledTail = false
	f.recv.setStarved(l, false)
	l.recovery.received, l.recovery.failing = 0, false
}

// nextGeneration counts the generation on, and keeps what the peer may have to be told of the last.
func (l *lane) nextGeneration() {
	v := &l.recovery
	v.reports.hasLast, v.reports.lastGeneration, v.reports.lastReceived = true, l.generation, v.received
	l.owner.mu.Lock()
	l.generation++
	l.owner.mu.Unlock()
	l.base = newTag(l.generation, 0, l.index, 0)
	v.reconnect.offer = nil
}

// watchRails takes lanes out of service whose rail has lost its port, its device or their QPs.
func (f *failover) watchRails() {
	for i := range f.setup.rails.rails {
		seen := f.handled[i]
		f.handled[i] = f.setup.rails.watch.rails[i].losses()
		if f.handled[i].portLosses != seen.portLosses {
			f.portDown(i)
		}
		if f.handled[i].qpLosses != seen.qpLosses {
			f.inspect(i)
		}
	}
}

// begin starts to watch the rails when the VirtualQP is connected. Events of before do not count, but lanes of a port that is down
// are out of service from the beginning. So are those apart, which are not connected, even if the port is active by now. They come back like any other.
func (f *failover) begin(apart []*lane) {
	f.setup.rails.watch.readPending()
	for i := range f.setup.rails.rails {
		f.handled[i] = f.setup.rails.watch.rails[i].losses()
		if f.setup.rails.rails[i].down() {
			f.portDown(i)
		}
	}
	for _, l := range apart {
		f.laneDown(l, errNotConnected)
	}
}

var errNotConnected = errors.New("its port or device was down when it was to be connected")

// portDown takes all lanes on a rail that has lost its port or its device out of service.
func (f *failover) portDown(rail int) {
	f.railDown(rail, fmt.Errorf("rail %d (%s) is down", rail, f.setup.rails.rails[rail].name))
}

// inspect takes the lanes on a rail out of service whose QPs have failed. A lane with nothing in
// flight has no completion that shows it.
func (f *failover) inspect(rail int) {
	for _, l := range f.setup.all {
		if int(l.rail) == rail && l.recovery.state == laneUp && l.qp.State() == verbs.StateErr {
			f.laneDown(l, errQPFatal)
		}
	}
}

var errQPFatal = errors.New("the NIC has given its QP up")

// railDown takes all lanes on a rail out of service.
func (f *failover) railDown(rail int, cause error) {
	if !f.recovers() {
		return
	}
	for _, l := range f.setup.all {
		if int(l.rail) == rail {
			f.laneDown(l, cause)
		}
	}
}

// canMove reports whether the entries of a lane have the keys for other rails.
func (s *sender) canMove(l *lane, rail, remoteRail uint8) bool {
	for n := l.head; n != l.tail; n++ {
		switch e := l.at(n); e.kind() {
		case kindData, kindMessage, kindAtomic:
			if !s.sends.of(e).carries(rail, remoteRail) {
				return false
			}
		default:
		}
	}
	return true
}
