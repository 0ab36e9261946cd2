package ibverbx

import (
	"errors"
	"fmt"
	"time"

	"ibverbx/verbs"
)

// This file brings lanes back: a new QP with a new number and the next generation on both
// ends, tried with real traffic before it carries anything.

// rebuild makes the QP of the next generation and offers it to the peer.
func (q *VirtualQP) rebuild(l *lane) {
	v := &l.life
	rail, ok := q.chooseRail(l)
	if !ok {
		return
	}
	v.attempts++
	l.become(laneOffered, q.now, nil) // its receives go to the NIC
	if err := q.renew(l, rail); err != nil {
		l.become(laneIdle, q.now, err)
		l.recvHead = l.recvTail // if some were posted: the QP is replaced
		v.backoff = min(2*v.backoff, backoffMax)
		v.due = q.now + q.jitter(v.backoff)
		return
	}
	q.release(l)
	v.sent, v.drained, v.meeting.connected, v.meeting.peerHas = 0, l.head, false, false
	q.sayOffer(l)
	q.meet(l)
}

// chooseRail says where the next generation of a lane is made. A data lane stays on its
// rail. The message and notify lanes go where a data lane is in service, home if that is
// possible: there is only one of each. Both ends must choose alike, so the one with the
// smaller incarnation leads, and the other takes the rail that faces what it was offered.
func (q *VirtualQP) chooseRail(l *lane) (rail uint8, ok bool) {
	if l.role == roleData {
		return l.rail, true
	}
	if q.peer < q.incarnation {
		if l.life.meeting.offer == nil {
			return 0, false
		}
		return q.facing(l.life.meeting.offer.rail)
	}
	rail = l.life.home
	for i, other := range q.lanes {
		if other.life.state != laneUp {
			continue
		}
		if other.rail == l.life.home {
			return l.life.home, true
		}
		// Another rail each time, in case one does not work.
		if rail == l.life.home || uint64(i)%uint64(len(q.lanes)) == l.life.attempts%uint64(len(q.lanes)) {
			rail = other.rail
		}
	}
	return rail, true
}

// facing is the rail at this side that faces a rail of the peer: as the lanes were laid out
// when the two met.
func (q *VirtualQP) facing(remote uint8) (rail uint8, ok bool) {
	for _, l := range q.all {
		if l.life.remoteHome == remote {
			return l.life.home, true
		}
	}
	return 0, false
}

// renew replaces the QP of a lane by a new one, in INIT with its receives posted.
func (q *VirtualQP) renew(l *lane, rail uint8) error {
	lc := laneConfig{index: int(l.index), rail: int(rail), role: l.role, recvs: int(l.recvDepth)}
	if q.takesShared(l) {
		lc.srq = q.shared.rails[rail].srq
	}
	if rail != l.rail {
		if err := q.cq.reserve(int(rail), q.cfg.LaneDepth+lc.recvs); err != nil {
			return err
		}
	}
	qp, err := q.createQP(lc)
	if err != nil {
		if rail != l.rail {
			q.cq.release(int(rail), q.cfg.LaneDepth+lc.recvs)
		}
		return err
	}
	q.cq.routes[l.rail].Delete(l.num)
	err = l.qp.Close() // a QP of a dead device may refuse; it is of no use to anybody
	_ = err
	if rail != l.rail {
		q.cq.release(int(l.rail), q.cfg.LaneDepth+lc.recvs)
		there := l.counts.since(&l.life.before)
		q.railPast[l.rail].add(&there)
		l.life.before = l.counts
	}
	l.qp, l.num, l.rail = qp, qp.Num(), rail
	q.cq.routes[rail].Set(l.num, l)
	return q.prepare(l)
}

// withdraw takes back an offer that the peer has not taken up.
func (q *VirtualQP) withdraw(l *lane, cause error) {
	v := &l.life
	_ = l.qp.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.AttrState) // renew destroys it
	l.recvHead = l.recvTail
	l.become(laneIdle, q.now, cause)
	v.backoff = min(max(backoffMin, 2*v.backoff), backoffMax)
	v.due = q.now + q.jitter(v.backoff)
}

// jitter spreads attempts, so that many VirtualQPs do not come back at the same moment.
func (q *VirtualQP) jitter(d int64) int64 {
	return d + int64(q.random.Next()%uint64(d/2+1))
}

// sayOffer tells the peer the address of the new QP, and again until the lane is in service.
func (q *VirtualQP) sayOffer(l *lane) {
	l.life.due = q.now + q.again(&l.life)
	q.offer(l, 0)
}

// offer tells the peer the address of a lane's QP, and whether this side has the peer's.
func (q *VirtualQP) offer(l *lane, flags uint16) {
	e, err := l.qp.Endpoint()
	if err != nil {
		q.laneDown(l, err)
		return
	}
	has := uint32(0)
	if l.life.meeting.mine = qpName(&e); l.life.meeting.connected {
		flags |= ctlHave
		has = qpName(&l.life.meeting.offer.endpoint)
	}
	q.say(&ctlMessage{
		kind: ctlOffer, lane: l.index, generation: l.generation, flags: flags, received: has,
		from: q.incarnation, to: q.peer, rail: l.rail, endpoint: e,
	})
}

// qpName tells a QP of a lane from others that had the same generation.
func qpName(e *verbs.Endpoint) uint32 { return e.QPN ^ e.PSN<<8 }

// hearOffer takes the peer's address of a lane's next generation.
func (q *VirtualQP) hearOffer(l *lane, m *ctlMessage) {
	v := &l.life
	switch {
	case int(m.rail) >= q.remoteRails:
		q.lied("lane %d is offered on rail %d of %d", l.index, m.rail, q.remoteRails)
		return
	case v.downs.said && m.generation == v.downs.lastGeneration && v.state != laneGone:
		q.answerDown(l) // the peer is behind
		return
	case m.generation != l.generation || v.state == laneDying:
		q.controlStats.stale++
		return
	}
	// The QP that the peer is connected to may be one that was withdrawn.
	misled := m.flags&ctlHave != 0 && (v.state == laneIdle || m.received != v.meeting.mine)
	other := v.meeting.offer != nil && v.meeting.connected && qpName(&m.endpoint) != qpName(&v.meeting.offer.endpoint)
	switch v.state {
	case laneGone:
		v.meeting.offer = m // for when the Downs have met
	case laneIdle:
		if misled {
			q.skipGeneration(l)
			return
		}
		v.meeting.offer = m
		v.due = q.now
	case laneOffered:
		switch {
		case misled && !v.meeting.connected:
			q.skipGeneration(l)
			return
		case misled || other:
			q.laneDown(l, errOtherQP)
			return
		case !v.meeting.connected:
			v.meeting.offer = m
		}
		v.meeting.peerHas = v.meeting.peerHas || m.flags&ctlHave != 0
		q.meet(l)
	case laneProbing, laneUp:
		if m.flags&ctlAnswer == 0 && !misled && !other {
			q.offer(l, ctlAnswer) // ours was lost
		}
	case laneDying:
	}
}

var errOtherQP = errors.New("the peer has made another QP")

// meet connects a lane when the peer's address is known, and tries it when the peer has
// said that it is connected too.
func (q *VirtualQP) meet(l *lane) {
	v := &l.life
	if v.state != laneOffered || v.meeting.offer == nil {
		return
	}
	if !v.meeting.connected {
		if err := l.qp.Connect(v.meeting.offer.endpoint); err != nil {
			q.laneDown(l, fmt.Errorf("connect: %w", err))
			return
		}
		l.remoteRail = v.meeting.offer.rail
		v.meeting.connected = true
		v.meeting.peerHas = v.meeting.offer.flags&ctlHave != 0
		q.sayOffer(l)
	}
	if v.meeting.peerHas {
		q.probe(l)
	}
}

// probe sends a WRITE of no bytes: it names no memory, and comes back if the path and the
// peer's QP work.
func (q *VirtualQP) probe(l *lane) {
	chain := q.chain[:1]
	chain[0] = verbs.SendWR{WRID: uint64(l.base | kindProbe.tag()), Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled}
	if _, err := l.qp.PostSend(chain); err != nil {
		q.laneDown(l, err)
		return
	}
	l.become(laneProbing, q.now, nil)
}

// probed takes the completion of a probe.
func (q *VirtualQP) probed(l *lane, wc *verbs.WC, t tag) {
	switch {
	case t.generation() != l.generation || l.life.state != laneProbing:
		q.stale(l)
	case wc.Status != verbs.StatusSuccess:
		q.laneDown(l, statusError(wc.Status))
	default:
		q.laneBack(l)
	}
}

// laneBack takes a lane into service again. What its last generation left undone, if no
// other lane has taken it, goes first.
func (q *VirtualQP) laneBack(l *lane) {
	v := &l.life
	l.become(laneUp, q.now, nil)
	l.barred = 0
	l.posted = l.head
	v.replayed += uint64(l.tail - l.head)
	l.speed = speed{}
	q.out--
	q.away = q.away || l.rail != v.home
	q.noticeLane(EventLaneUp, l, nil)
	if l.posted != l.tail && !l.listed {
		q.list(l)
	}
	q.cq.touch(q)
}

// offerTime is how long an offer waits for the peer's before another rail is tried.
const offerTime = int64(500 * time.Millisecond)

var errNoAnswer = errors.New("the peer does not answer")

// errGoingHome is why a lane that works is taken out of service.
var errGoingHome = errors.New("it returns to the rail that it was made on")

// goHome takes a message or notify lane that was rebuilt on another rail out of service, to
// be rebuilt at home, when that is back and nothing is in flight. Atomics wait for it. The
// end that leads in chooseRail decides.
func (q *VirtualQP) goHome(l *lane) {
	v := &l.life
	if l.rail == v.home || q.peer < q.incarnation || !l.idle() || q.now-v.since < backoffMax/8 {
		return
	}
	for _, other := range q.lanes {
		if other.rail == v.home && other.life.state == laneUp {
			q.laneDown(l, errGoingHome)
			return
		}
	}
}
