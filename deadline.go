package ibverbx

import (
	"errors"
	"fmt"
	"math"
	"time"

	"ibverbx/verbs"
)

// lateness is how long after it was first seen that a deadline has passed a VirtualQP ends
// although there may be completions that nobody has polled.
const lateness = int64(time.Second)

// checkDeadline ends the VirtualQP if a request has not ended in time. What has ended and
// was not taken is in time, and so is what a CQ has: they are looked at first.
func (q *VirtualQP) checkDeadline() {
	seq, ok := q.oldest()
	q.askIfSilent(seq, ok)
	if !ok || q.now <= q.slot(seq).deadline {
		q.late = false
		return
	}
	if !q.late {
		q.late, q.lateAt, q.lateSince = true, q.cq.barriers(), q.now
	}
	if q.cq.passedAll(&q.lateAt) || q.now > q.lateSince+lateness {
		q.expire(q.slot(seq))
	}
}

// oldest is the oldest request that has not ended, if there is one.
func (q *VirtualQP) oldest() (seq uint32, ok bool) {
	for seq = q.reported; seq != q.posted; seq++ {
		if q.slot(seq).pending != 0 {
			return seq, true
		}
	}
	return 0, false
}

// askTime is how long the oldest request waits before the peer is asked whether it is still
// the one that was connected, and then how often.
const askTime = int64(500 * time.Millisecond)

// askIfSilent asks the peer for a sign that it is gone if the oldest request does not end.
// Lanes need not notice that: a request may wait for something that only the peer can do,
// with nothing in flight.
func (q *VirtualQP) askIfSilent(oldest uint32, waiting bool) {
	if !waiting || !q.asking || oldest != q.askFor {
		q.asking, q.askFor, q.askAt = waiting, oldest, q.now+askTime
		return
	}
	if q.now >= q.askAt {
		q.askAt = q.now + askTime
		q.ask()
	}
}

// ask says something that the peer need not answer, but that another VirtualQP in its place
// answers with a Reset.
func (q *VirtualQP) ask() {
	l := q.all[0]
	if l.life.receives() {
		q.offer(l, ctlAnswer)
	} else if l.life.downs.said {
		q.answerDown(l)
	}
}

// expire ends the VirtualQP because a request has not ended in time.
func (q *VirtualQP) expire(s *sendSlot) {
	s.fail(verbs.StatusRetryExcErr, 0)
	l := q.all[0]
	for _, other := range q.all {
		if other.life.state != laneUp {
			l = other
		}
	}
	cause := fmt.Errorf("%w: a request has not ended within %v", ErrDeadline, q.cfg.Deadline)
	if l.life.cause != nil {
		cause = fmt.Errorf("%w; lane %d is out of service: %w", cause, l.index, l.life.cause)
	}
	q.fail(l, cause)
}

// ErrDeadline says that a request did not end within Config.Deadline.
var ErrDeadline = errors.New("deadline exceeded")

// Due is the time, by Config.Now, by which Poll wants to be called although nothing need
// have come: for a lane's next step or a deadline. It is math.MaxInt64 if there is no such
// time. It is for callers with an event loop of their own, who must also poll when a CQ of
// a rail or a Control has something; Wait does all that.
func (c *VirtualCQ) Due() int64 {
	due := int64(math.MaxInt64)
	for _, q := range c.driven {
		due = min(due, q.due())
	}
	return due
}

// due is when the VirtualQP wants to be driven next.
func (q *VirtualQP) due() int64 {
	due := int64(math.MaxInt64)
	if q.state != stateConnected {
		return due
	}
	if seq, ok := q.oldest(); ok {
		due = q.slot(seq).deadline + 1
		if q.asking {
			due = min(due, max(q.askAt, q.now+1))
		} else {
			due = min(due, q.now+askTime)
		}
	}
	if q.out == 0 && !q.away {
		return due
	}
	for _, l := range q.all {
		v := &l.life
		switch v.state {
		case laneUp:
			if l.rail != v.home {
				due = min(due, max(v.since, q.now)+backoffMax/8)
			}
		case laneDying:
			due = min(due, q.now+driveBusy) // what is drained shows in polls that find nothing
		case laneGone, laneIdle, laneOffered:
			// What is due already waits for something else, which the peer will say.
			if v.due > q.now {
				due = min(due, v.due)
			} else {
				due = min(due, q.now+resendTime)
			}
		case laneProbing:
		}
	}
	return due
}
