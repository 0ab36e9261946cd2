package ibverbx

import (
	"errors"
	"fmt"

	"ibverbx/verbs"
)

// This file is the exchange of Downs: how two ends agree that a generation of a lane is out
// of service, and what of it has arrived.

// listen takes the control messages that have come.
func (q *VirtualQP) listen() {
	for range pollBatch {
		n, err := q.cfg.Control.Recv(q.control[:])
		if errors.Is(err, ErrPeerGone) && q.state == stateConnected {
			q.fail(q.all[0], err)
		}
		if err != nil || n == 0 {
			return // any other error of the channel is a message that is lost
		}
		m, err := decodeControl(q.control[:min(n, MaxControl)])
		if err != nil {
			q.controlStats.bad++
			continue
		}
		q.hear(&m)
	}
}

// hear acts on a control message.
func (q *VirtualQP) hear(m *ctlMessage) {
	switch {
	case m.to != q.incarnation:
		// For another that was here before. It must not wait for an answer for ever.
		q.controlStats.stale++
		if m.kind != ctlReset {
			q.say(&ctlMessage{kind: ctlReset, from: q.incarnation, to: m.from})
		}
		return
	case m.kind == ctlReset:
		if q.state == stateConnected {
			q.fail(q.all[0], fmt.Errorf("%w: the VirtualQP at the other end is gone", ErrPeerGone))
		}
		return
	case m.from != q.peer:
		q.controlStats.stale++
		return
	case q.state != stateConnected:
		q.tellReset()
		return
	case int(m.lane) >= len(q.all):
		q.lied("a control message for lane %d of %d", m.lane, len(q.all))
		return
	}
	switch l := q.all[m.lane]; m.kind {
	case ctlDown:
		q.hearDown(l, m)
	case ctlOffer:
		q.hearOffer(l, m)
	case ctlReset:
	}
}

// ErrPeerGone says that the peer's VirtualQP has ended, or was never the one meant.
var ErrPeerGone = errors.New("the peer is gone")

// lied ends the VirtualQP because a control message cannot be true.
func (q *VirtualQP) lied(format string, args ...any) {
	q.fail(q.all[0], fmt.Errorf("the peer does not keep to the control protocol: %s", fmt.Sprintf(format, args...)))
}

// say sends a control message. What does not get through is said again.
func (q *VirtualQP) say(m *ctlMessage) {
	n, err := m.encode(q.control[:])
	if err == nil {
		err = q.cfg.Control.Send(q.control[:n])
	}
	if err != nil {
		q.controlStats.unsent++
	}
}

// sayDown tells the peer that the generation before this one is out of service here, and
// how much of it arrived.
func (q *VirtualQP) sayDown(l *lane) {
	v := &l.life
	q.say(&ctlMessage{
		kind: ctlDown, lane: l.index, generation: v.downs.lastGeneration, received: v.downs.lastReceived, from: q.incarnation, to: q.peer,
	})
	v.due, v.downs.mute = q.now+q.again(v), false
}

// again is how long to wait before a message is repeated: longer each time.
func (q *VirtualQP) again(v *life) int64 {
	return min(max(resendTime, q.now-v.since), resendMax)
}

// tellReset tells the peer that this VirtualQP has ended.
func (q *VirtualQP) tellReset() {
	if q.cfg.Control != nil && q.peer != 0 {
		q.say(&ctlMessage{kind: ctlReset, from: q.incarnation, to: q.peer})
	}
}

// hearDown learns that a generation of a lane is out of service at the peer. If it is
// still in service here it is taken out; if it was the last one, the two can settle. One
// that was settled is answered again, because the answer may have been lost.
func (q *VirtualQP) hearDown(l *lane, m *ctlMessage) {
	v := &l.life
	current, last := m.generation == l.generation, v.downs.said && m.generation == v.downs.lastGeneration
	switch {
	case current && (v.state == laneIdle || (v.state == laneOffered && !v.meeting.connected)):
		// The peer had more of this generation than this side: nothing.
		q.skipGeneration(l)
	case current && v.state != laneGone:
		v.downs.peerDown, v.downs.peerReceived = true, m.received
		q.laneDown(l, errPeerDown)
	case last && v.state == laneGone:
		v.downs.peerDown, v.downs.peerReceived = true, m.received
	case last && m.flags&ctlAnswer == 0:
		q.answerDown(l)
	default:
		q.controlStats.stale++
	}
}

// answerDown says again what this side said of the last generation.
func (q *VirtualQP) answerDown(l *lane) {
	q.say(&ctlMessage{
		kind: ctlDown, lane: l.index, generation: l.life.downs.lastGeneration, received: l.life.downs.lastReceived,
		flags: ctlAnswer, from: q.incarnation, to: q.peer,
	})
}

// skipGeneration gives up a generation of which this side has nothing, and says so.
func (q *VirtualQP) skipGeneration(l *lane) {
	v := &l.life
	if v.state == laneOffered {
		q.withdraw(l, errPeerDown)
	}
	v.received = 0
	q.nextGeneration(l)
	v.meeting.offer = nil
	q.answerDown(l)
}

var errPeerDown = errors.New("the peer has taken it out of service")

// settle decides what becomes of the requests that were in flight on a generation that is
// out of service at both ends. RC delivers in order, so the peer's count says which of
// those that use up a receive arrived, and with one of them everything before it did. What
// arrived has ended; a READ, whose answer may be lost, and the rest are done again; an
// atomic is in doubt and fails.
func (q *VirtualQP) settle(l *lane) {
	v := &l.life
	doubtful := uint32(0)
	for n := l.head; n != l.posted; n++ {
		doubtful += l.at(n).head >> 31
	}
	arrived := v.downs.peerReceived - (v.sent - doubtful) // of the doubtful ones
	if int32(arrived) < 0 || arrived > doubtful {
		q.lied("lane %d delivered %d of the %d to %d that were sent", l.index, v.downs.peerReceived, v.sent-doubtful, v.sent)
		return
	}
	v.downs.peerDown, v.sent = false, 0
	l.become(laneIdle, q.now, nil)
	v.due = q.now + v.backoff // at once, unless it has been back for a short time only
	v.backoff = min(max(backoffMin, 2*v.backoff), backoffMax)
	ok := q.sift(l, arrived)
	if l.idle() && l.role == roleData {
		q.carried.remove(l.index) // all of it has arrived
	}
	if !ok {
		q.atomicInDoubt(l)
	}
}

// sift takes what has arrived out of the ledger of a lane and keeps the rest, in order. It
// reports false if an atomic is in doubt.
func (q *VirtualQP) sift(l *lane, arrived uint32) (ok bool) {
	ok = true
	// The place behind the last that arrived: everything before it has.
	end := l.head
	for n, left := l.head, arrived; left > 0; n++ {
		if l.at(n).consumes() {
			left--
			end = n + 1
		}
	}
	keep := l.head
	for n := l.head; n != l.tail; n++ {
		e := *l.at(n)
		s := &q.sends[e.slot()]
		done := int32(end-n) > 0 && s.wire != verbs.OpRDMARead
		if e.kind() == kindAtomic && n-l.head < l.posted-l.head {
			ok = false
			s.fail(verbs.StatusRetryExcErr, 0)
			done = true
		}
		if !done {
			*l.at(keep) = e
			keep++
			continue
		}
		if e.kind() >= kindMessage {
			q.messages--
		}
		s.pending--
		l.bytes -= uint64(e.bytes)
		q.inflight--
	}
	l.tail, l.posted = keep, l.head
	return ok
}

// ErrAtomicInDoubt says that a lane was lost with an atomic on it.
var ErrAtomicInDoubt = errors.New("an atomic is in doubt")

// atomicInDoubt ends the VirtualQP, unless Config keeps it up: nobody knows whether an
// atomic was carried out, and it cannot be repeated.
func (q *VirtualQP) atomicInDoubt(l *lane) {
	if !q.cfg.KeepAtomics {
		q.fail(l, fmt.Errorf("%w: %w", ErrAtomicInDoubt, l.life.cause))
	}
}
