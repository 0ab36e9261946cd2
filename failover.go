package ibverbx

import (
	"errors"
	"fmt"
	"time"

	"ibverbx/verbs"
)

// Times of failover, in nanoseconds.
const (
	drainTime  = int64(100 * time.Millisecond) // for a NIC to flush a QP in ERR
	resendTime = int64(2 * time.Millisecond)   // before a control message is sent again, at first
	resendMax  = int64(100 * time.Millisecond)
	// refusalTime is how long a NAK may take that a control message must not overtake.
	refusalTime = int64(2 * time.Millisecond)
	backoffMin  = int64(1 * time.Millisecond) // before a lane is brought back, at first
	backoffMax  = int64(2 * time.Second)
	// steadyTime is how long a lane must hold before its failures are forgotten.
	steadyTime = int64(10 * time.Second)
	driveEvery = 64 // polls with completions between two looks at control and clock
	// and the time between two, if that is over before: calmly, and while lanes are out
	// of service.
	driveCalm = int64(50 * time.Microsecond)
	driveBusy = int64(5 * time.Microsecond)
)

// KillLane takes the QP of a lane to ERR, as a NIC does when it gives a connection up: a
// drill for programs that must live with that.
func (q *VirtualQP) KillLane(lane int) error {
	if lane < 0 || lane >= len(q.all) {
		return q.opError("kill lane", verbs.Invalidf("lane %d of %d", lane, len(q.all)))
	}
	return q.all[lane].qp.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.AttrState)
}

// survives reports whether the VirtualQP can live on after a lane ended with status. Other
// statuses are mistakes of the program, which another lane would make again; unless the
// port is down: then drivers report what comes to them (Soft-RoCE: LOC_QP_OP_ERR).
func (q *VirtualQP) survives(l *lane, status verbs.Status) bool {
	if q.cfg.Control == nil || q.state != stateConnected {
		return false
	}
	switch status {
	case verbs.StatusRetryExcErr, verbs.StatusRNRRetryExcErr, verbs.StatusWRFlushErr:
		return true
	default:
	}
	r := &q.rails.rails[l.rail].cfg
	port, err := r.Context.QueryPort(int(r.Port))
	return err == nil && port.State != verbs.PortActive
}

// laneBroken handles a lane whose NIC takes no requests any more.
func (q *VirtualQP) laneBroken(l *lane, err error) {
	if q.cfg.Control == nil || q.state != stateConnected || errors.Is(err, verbs.ErrInvalid) {
		q.fail(l, err)
		return
	}
	q.laneDown(l, err)
}

// laneDown takes a lane out of service at once: it gets no more work, and its QP goes to
// ERR, which makes the NIC give back what it has.
func (q *VirtualQP) laneDown(l *lane, cause error) {
	v := &l.life
	switch v.state {
	case laneDying, laneGone, laneIdle:
		return
	case laneOffered:
		if !v.meeting.connected {
			// Nobody can have reached it: the same generation is tried again.
			q.withdraw(l, cause)
			return
		}
	case laneUp:
		q.out++
		q.nextDrive = q.now
		if q.now-v.since > steadyTime {
			v.backoff = 0
		}
		q.noticeLane(EventLaneDown, l, cause)
	case laneProbing:
	}
	l.become(laneDying, q.now, cause)
	v.emptied = q.cq.barrier(l.rail)
	v.due, v.overdue = q.now+drainTime, v.emptied
	v.deaths++
	l.barred |= barOut
	// A QP that cannot go to ERR is there already, or gone.
	_ = l.qp.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.AttrState)
	q.cq.touch(q)
}

// drained reports whether the NIC has given back everything that a dying lane had.
func (q *VirtualQP) drained(l *lane) bool {
	v := &l.life
	if l.head != l.posted && (!v.failing || v.drained != l.posted) {
		return false
	}
	if q.takesShared(l) {
		return q.cq.passed(l.rail, v.emptied)
	}
	return l.recvHead == l.recvTail
}

// reset takes a dying lane's QP to RESET: from here on nothing that this generation sent or
// asked for can touch memory at this side. Then the peer is told; a while later, if it has
// asked for what cannot be: it must hear so from its NIC, and does not if it takes the lane out
// of service before. It would only ask again on another lane.
func (q *VirtualQP) reset(l *lane) {
	v := &l.life
	refused := q.rails.hasRefused(int(l.rail), l.qp.Num())
	q.retireGeneration(l)
	if v.due, v.downs.mute = q.now, refused; refused {
		v.due += refusalTime
		return
	}
	q.sayDown(l)
}

// retireGeneration ends a generation at this side. Completions that are still in a CQ bear
// its number and are dropped.
func (q *VirtualQP) retireGeneration(l *lane) {
	v := &l.life
	// A QP that cannot be reset is destroyed with the next generation at the latest.
	_ = l.qp.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.AttrState)
	l.become(laneGone, q.now, nil)
	q.nextGeneration(l)
	l.recvHead = l.recvTail
	l.barred &^= barRefused
	l.silent = false
	if l.hungry {
		l.hungry = false
		q.hungry--
	}
	v.received, v.failing = 0, false
}

// nextGeneration counts a lane's generation on, and keeps what is to be said of the last.
func (q *VirtualQP) nextGeneration(l *lane) {
	v := &l.life
	v.downs.said, v.downs.lastGeneration, v.downs.lastReceived = true, l.generation, v.received
	l.generation++
	l.base = newTag(l.generation, 0, l.index, 0)
	v.meeting.offer = nil
}

// abandon takes a lane out of service for good, because the VirtualQP has failed: what it
// has in its ledger no NIC has any more.
func (q *VirtualQP) abandon(l *lane) {
	if l.life.state != laneGone && l.life.state != laneIdle {
		q.retireGeneration(l)
	}
	q.release(l)
	l.posted = l.head
}

// standIn returns a lane that is in service for one that should carry something: itself,
// or any other if it is out and has nothing left that must come first. It returns nil if
// there is none yet.
func (q *VirtualQP) standIn(l *lane) *lane {
	if l.barred&barOut == 0 {
		return l
	}
	if q.homeless() > 0 {
		return nil
	}
	return q.choose(0)
}

// homeless counts the data lanes out of service that still have requests in their ledgers.
func (q *VirtualQP) homeless() (n int) {
	if q.out == 0 {
		return 0
	}
	for _, l := range q.lanes {
		if l.barred&barOut != 0 && !l.idle() {
			n++
		}
	}
	return n
}

// rehome moves what data lanes out of service have left to one other lane each, all of it
// at once and in order: a record of Tally stays behind the fragments that it covers. A
// lane that is to take it, and has too much of its own, gets nothing else until then. The
// message and notify lanes have no heirs: what they have left waits for their next
// generation.
func (q *VirtualQP) rehome() {
	for _, l := range q.lanes {
		v := &l.life
		if v.state != laneIdle || l.idle() {
			continue
		}
		if v.heir != nil && v.heir.barred&barOut != 0 {
			q.release(l)
		}
		if v.heir == nil {
			v.heir = q.roomiest()
		}
		h := v.heir
		if h == nil {
			continue
		}
		// One without anything takes whatever there is: a ledger has room for a little
		// more than its depth, and the NIC refuses what is too much for it.
		if h.depth-min(h.depth, h.tail-h.head) < l.tail-l.head && !h.idle() {
			h.barred |= barReserved
			continue
		}
		q.release(l)
		q.handDown(l, h)
	}
}

// roomiest returns the data lane in service that has the least in flight and that nobody
// else waits for, nil if there is none.
func (q *VirtualQP) roomiest() (best *lane) {
	for _, l := range q.lanes {
		if l.barred == 0 && (best == nil || l.tail-l.head < best.tail-best.head) {
			best = l
		}
	}
	return best
}

// release gives up what a lane has reserved of its heir.
func (q *VirtualQP) release(l *lane) {
	if h := l.life.heir; h != nil {
		h.barred &^= barReserved
		l.life.heir = nil
	}
}

// handDown moves everything that a lane has left to another one.
func (q *VirtualQP) handDown(l, h *lane) {
	h.grow(l.tail - l.head + 1) // and a record
	for !l.idle() {
		e := *l.at(l.head)
		l.head++
		l.posted = l.head
		l.bytes -= uint64(e.bytes)
		q.inflight--
		l.life.replayed++
		if !e.consumes() && e.kind() <= kindData && q.sends[e.slot()].op != verbs.OpRDMARead {
			q.carried.add(h.index)
		}
		q.add(h, e.head, e.off, e.bytes, e.imm)
	}
	q.carried.remove(l.index)
	q.scheme.moved(l, h)
}

// drive does what is due: control messages, lanes that are dying or coming back, and
// deadlines.
func (q *VirtualQP) drive() {
	if q.state != stateConnected && q.state != stateFailed {
		return
	}
	q.now = q.cfg.Now()
	q.listen()
	if q.nextDrive = q.now + driveCalm; q.out > 0 {
		q.nextDrive = q.now + driveBusy
	}
	if q.state != stateConnected {
		return
	}
	q.watchRails()
	if q.out > 0 || q.away {
		for _, l := range q.all {
			q.driveLane(l)
			if q.state != stateConnected {
				return
			}
		}
		q.cq.touch(q)
	}
	q.checkDeadline()
}

// driveLane takes the next step of a lane that is out of service.
func (q *VirtualQP) driveLane(l *lane) {
	v := &l.life
	switch v.state {
	case laneDying:
		// RESET takes completions out of the CQ: what the NIC has acknowledged must have
		// been seen before.
		if q.now < v.due {
			v.overdue = q.cq.barrier(l.rail)
		}
		if q.drained(l) || q.cq.passed(l.rail, v.overdue) {
			q.reset(l)
		}
	case laneGone:
		if v.downs.peerDown {
			if v.downs.mute {
				q.sayDown(l)
			}
			q.settle(l)
		} else if q.now >= v.due {
			q.sayDown(l)
		}
	case laneIdle:
		if q.now >= v.due {
			q.rebuild(l)
		}
	case laneOffered:
		if !v.meeting.connected && q.now-v.since > offerTime {
			q.withdraw(l, errNoAnswer)
			return
		}
		if q.now >= v.due {
			q.sayOffer(l)
		}
		q.meet(l)
	case laneUp:
		q.goHome(l)
	case laneProbing:
	}
}

// watchRails takes lanes out of service whose rail has lost its port, its device or their
// QPs.
func (q *VirtualQP) watchRails() {
	for i := range q.rails.rails {
		r := &q.rails.rails[i]
		if falls := r.falls.Load(); falls != q.falls[i] {
			q.falls[i] = falls
			q.railDown(i, fmt.Errorf("rail %d (%s) is down", i, r.name))
		}
		if deaths := r.deaths.Load(); deaths != q.deaths[i] {
			q.deaths[i] = deaths
			q.inspect(i)
		}
	}
}

// inspect takes the lanes on a rail out of service whose QPs have failed. A lane that has
// nothing in flight has no completion that would tell.
func (q *VirtualQP) inspect(rail int) {
	for _, l := range q.all {
		if int(l.rail) == rail && l.life.state == laneUp && l.qp.State() == verbs.StateErr {
			q.laneDown(l, errQPFatal)
		}
	}
}

var errQPFatal = errors.New("the NIC has given its QP up")

// railDown takes all lanes on a rail out of service.
func (q *VirtualQP) railDown(rail int, cause error) {
	if q.state != stateConnected {
		return
	}
	for _, l := range q.all {
		if int(l.rail) == rail {
			q.laneDown(l, cause)
		}
	}
}
