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

// failover owns the state of the VirtualQP and of its lanes. With Config.Control, it takes lanes out of service (this
// file), agrees with the peer on received data (failover_agree.go) and rebuilds lanes (failover_rebuild.go). Without
// it, losing a lane fails the VirtualQP.
type failover struct {
	setup *setup
	clock *cachedClock
	send  *sender
	recv  *receiver
	// random spreads rebuild attempts.
	random   *xorshift.Source
	link     controlLink
	watchdog watchdog

	state        qpState
	err          error    // cause of the VirtualQP's failure, or nil; written under VirtualQP.mu
	errShown     bool     // the program has seen err, in a failed completion or from Wait
	failBarriers barriers // barriers of the rails, set when the VirtualQP failed
	out          int      // number of lanes out of service
	// strandedSince is the time at which drive first saw all data lanes out of service; 0 if one is in service.
	strandedSince int64
	displaced     bool // a lane is away from its home rail
	// nextDrive is the time of the next drive even if polls find completions.
	nextDrive       int64
	railsWithoutGID uint8 // bit set of the peer's rails whose address was missing in its card
	peerExit        peerExit
	handled         [MaxRails]losses // handled losses of each rail
	railPast        [MaxRails]Counts // counts of lanes that have left the rail; written under VirtualQP.mu
	lossReport      *lossReport      // nil before the first loss of a lane; written under VirtualQP.mu
}

// Times of failover, in nanoseconds.
const (
	drainTime   = int64(100 * time.Millisecond) // longest time for a NIC to flush a QP in ERR
	resendTime  = int64(2 * time.Millisecond)   // first pause before a control message is retransmitted
	resendMax   = int64(100 * time.Millisecond) // longest such pause
	refusalTime = int64(2 * time.Millisecond)   // head start of a NAK over a control message
	backoffMin  = int64(1 * time.Millisecond)   // first pause before another rebuild attempt
	backoffMax  = int64(2 * time.Second)        // longest such pause
	urgentTime  = int64(25 * time.Millisecond)  // longest such pause for a lane that requests wait for
	steadyTime  = int64(10 * time.Second)       // time in service after which earlier failures of a lane are forgotten
	driveCalm   = int64(50 * time.Microsecond)  // between two drives while polls find completions
	driveBusy   = int64(5 * time.Microsecond)   // the same while lanes are out of service
)

// driveEvery is the number of polls with completions between two drives.
const driveEvery = 64

// recovers reports whether the VirtualQP can survive the loss of a lane.
func (f *failover) recovers() bool { return f.setup.cfg.Control != nil && f.state <= stateConnected }

// survives reports whether the VirtualQP can continue after a lane's request failed with status. A status caused by
// the program would recur on another lane. If the port is down, though, drivers report any status (Soft-RoCE:
// LOC_QP_OP_ERR).
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

// laneBroken handles a lane whose NIC no longer accepts requests.
func (f *failover) laneBroken(l *lane, err error) {
	if !f.recovers() || errors.Is(err, verbs.ErrInvalid) {
		f.fail(l, err)
		return
	}
	f.laneDown(l, err)
}

// laneDown takes a lane out of service immediately: it stops accepting requests, and its QP moves to ERR.
func (f *failover) laneDown(l *lane, cause error) {
	v, now := &l.recovery, f.clock.now
	switch v.state {
	case laneDying, laneGone, laneIdle:
		return
	case laneOffered:
		if !v.reconnect.connected {
			// The peer cannot have used it, so the same generation is retried.
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
			v.attempts = 0 // try home first
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

// requestFailed takes a lane out of service because its request failed.
func (f *failover) requestFailed(l *lane, status verbs.Status) {
	if status == verbs.StatusRetryExcErr {
		f.probeRail(l)
	}
	f.laneDown(l, statusError(status))
}

// failed fails the VirtualQP because a lane's request failed.
func (f *failover) failed(l *lane, status verbs.Status) {
	if f.err == nil {
		f.fail(l, statusError(status))
	}
}

// statusError describes the status of a lane's first failed completion. If that is a flush, no request is to blame.
func statusError(status verbs.Status) error {
	if status == verbs.StatusWRFlushErr {
		return errQPFatal
	}
	return fmt.Errorf("%s: %s", status, status.Cause())
}

// fail fails the VirtualQP. The error is visible immediately, all lanes stop, and outstanding requests are flushed. A
// fragment on a NIC completes when the NIC returns it, so that no buffer is accessed after its completion. l is the
// lane to blame, or nil for the peer or several lanes.
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

// abandon takes a lane of a failed VirtualQP out of service for good. Afterwards, no NIC writes to memory for its
// entries.
func (f *failover) abandon(l *lane) {
	if l.recovery.state != laneGone && l.recovery.state != laneIdle {
		l.stopQP()
		f.retireGeneration(l)
	}
	l.release()
	l.posted = l.head
}

// holdsMessages reports whether abandoning the lane may drop the peer's messages.
func (l *lane) holdsMessages() bool {
	state := l.recovery.state
	return state == laneDying || state == laneOffered || state == laneProbing
}

// flush completes the requests and receives that no NIC has.
func (f *failover) flush() {
	f.send.flush()
	f.recv.flush()
	f.setup.queueReport()
}

// unsettled reports whether a failed VirtualQP needs another report even without a completion: a lane could not be
// marked yet, or receives wait until the CQs are known to be empty.
func (f *failover) unsettled() bool {
	return f.send.needsMarker() || (f.setup.shared != nil && f.recv.notifications.Len() > 0) || f.recv.pooledLane() != nil
}

// reassign moves the entries of each settled data lane to one other lane, all at once and in order, so that a Tally
// record stays behind its fragments. If that lane has too many entries, it is reserved until it can hold them.
// Entries of the message and notify lanes wait for the next generation instead.
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
		// An idle successor accepts any number: its ledger grows, and its NIC refuses the excess.
		if h.depth-min(h.depth, h.load()) < l.load() && !h.idle() {
			h.blocked |= blockReserved
			continue
		}
		l.release()
		f.lossReport.failedOver(f, l)
		f.moveAll(l, h)
	}
}

// roomiest returns the unreserved data lane in service with the fewest entries that can carry the entries of lost, or
// nil.
func (f *failover) roomiest(lost *lane) (best *lane) {
	for _, l := range f.setup.lanes {
		if l.blocked == 0 && (best == nil || l.load() < best.load()) && f.send.canMove(lost, l.rail, l.remoteRail) {
			best = l
		}
	}
	return best
}

// release releases the lane's reserved successor.
func (l *lane) release() {
	if h := l.recovery.successor; h != nil {
		h.blocked &^= blockReserved
		l.recovery.successor = nil
	}
}

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

// drive runs everything that is due: control messages, the recovery of lanes, and deadlines.
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

// schedule sets the timer for the oldest request, or removes it.
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

// driveLane runs the next recovery step of a lane.
func (f *failover) driveLane(l *lane) {
	v, now := &l.recovery, f.clock.now
	switch v.state {
	case laneDying:
		// RESET removes completions from the CQ, so acknowledged requests must have been polled before.
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
				cause = nil // the peer could not respond
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

// drained reports whether the NIC has returned everything that a dying lane had.
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

// reset moves a dying lane's QP to RESET. Afterwards, this generation cannot access local memory. The peer is
// notified immediately or, if this QP refused a request of the peer, after refusalTime: the peer must learn of the
// refusal from its NIC, which does not report it if the peer takes the lane out of service first. The peer would then
// retry the request on another lane.
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

// retireGeneration ends a generation locally. Completions still in a CQ carry its number and are dropped.
func (f *failover) retireGeneration(l *lane) {
	l.become(laneGone, f.clock.now, nil)
	l.nextGeneration()
	l.recvHead = l.recvTail
	l.blocked &^= blockRefused
	l.unsignaledTail = false
	f.recv.setStarved(l, false)
	l.recovery.received, l.recovery.failing = 0, false
}

// nextGeneration increments the generation, and keeps the data of the last one for a Down.
func (l *lane) nextGeneration() {
	v := &l.recovery
	v.reports.hasLast, v.reports.lastGeneration, v.reports.lastReceived = true, l.generation, v.received
	l.owner.mu.Lock()
	l.generation++
	l.owner.mu.Unlock()
	l.base = newTag(l.generation, 0, l.index, 0)
	v.reconnect.offer = nil
}

// watchRails takes lanes out of service whose rail has lost its port, its device or a QP.
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

// begin starts watching the rails at Connect. Earlier events do not count, but lanes on an inactive port start out of
// service. So do the unconnected lanes in apart, even if their port is active by now. They recover like any other.
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

var errNotConnected = errors.New("its port or device was down during Connect")

// portDown takes all lanes on a rail out of service that has lost its port or device.
func (f *failover) portDown(rail int) {
	f.railDown(rail, fmt.Errorf("rail %d (%s) is down", rail, f.setup.rails.rails[rail].name))
}

// inspect takes the lanes with a failed QP on a rail out of service. An idle lane does not get a completion that
// would reveal the failure.
func (f *failover) inspect(rail int) {
	for _, l := range f.setup.all {
		if int(l.rail) == rail && l.recovery.state == laneUp && l.qp.State() == verbs.StateErr {
			f.laneDown(l, errQPFatal)
		}
	}
}

var errQPFatal = errors.New("the NIC has moved its QP to ERR")

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

// canMove reports whether a lane's entries have the keys for other rails.
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
