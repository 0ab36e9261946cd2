package softnic

import (
	"time"

	"ibverbx/internal/ring"
	"ibverbx/internal/roce"
	"ibverbx/verbs"
)

// lossState is the requester's state for loss detection.
type lossState struct {
	// wentBack is set after a go-back for a gap at wentTo.
	wentBack bool
	wentTo   roce.PSN
	// wentAt and probedAt are the times of the last go-back and of the last probe.
	wentAt, probedAt int64
	trip             roundTrip
	lossLimiter
}

// roundTrip measures the peer's response time, one packet at a time.
type roundTrip struct {
	// running is set while packet psn, first sent at time at, is being measured.
	running bool
	// again is set once a timer has retransmitted packet againPSN, at time againAt.
	again bool
	// replaceNext is set if the next measurement replaces smooth.
	replaceNext bool
	// rest is the number of packets to skip before the next measurement, because reading the clock is
	// slow.
	rest          uint8
	psn, againPSN roce.PSN
	at, againAt   int64
	// smooth is the moving average, 0 before the first measurement. spread is the mean deviation.
	smooth, spread int64
	// least is the shortest measurement.
	least int64
}

// tripRest is the number of packets with an ACK request skipped between two measurements.
const tripRest = 15

// measure starts measuring packet psn, a first transmission with an ACK request.
func (q *qp) measure(psn roce.PSN) {
	if t := &q.loss.trip; t.rest > 0 {
		t.rest--
	} else if !t.running {
		t.running, t.psn, t.at = true, psn, q.core.clock()
	}
}

// measured records the response to the measured packet.
func (q *qp) measured() {
	t := &q.loss.trip
	d := q.tripSince(t.at)
	if t.running, t.again = false, false; t.smooth == 0 || t.replaceNext {
		t.replaceNext = t.smooth == 0
		t.smooth, t.spread = d, d/2
	} else {
		t.spread += (max(d-t.smooth, t.smooth-d) - t.spread) / 4
		t.smooth += (d - t.smooth) / 8
		t.rest = tripRest
	}
	if t.least == 0 || d < t.least {
		t.least = d
	}
}

// noteRetransmit records that the timer has retransmitted packet una. The next response may belong to either
// copy, so it is not measured. If the retransmission was unnecessary, the peer responds twice (see
// duplicateResponse).
func (q *qp) noteRetransmit(now int64) {
	t := &q.loss.trip
	t.running, t.rest = false, 0
	t.again, t.againPSN, t.againAt = true, q.una, now
}

// duplicateResponse handles an unexpected response to packet psn. If a timer had retransmitted that packet,
// the peer has also responded to the first copy, and its response time exceeds the timer. A timer that
// grew without this evidence would grow without bound on a path that merely loses packets.
func (q *qp) duplicateResponse(psn roce.PSN) {
	t := &q.loss.trip
	if !t.again || psn.Sub(t.againPSN) < 0 || psn.Sub(q.una) >= 0 {
		return
	}
	t.again = false
	if d := q.tripSince(t.againAt); d > t.smooth {
		t.smooth, t.spread, t.replaceNext = d, d/2, true
	}
}

// tripSince returns the time since a packet was sent. It may be far too long because this process was
// not running, so it is capped at the QP's timeout or four times the average, whichever is longer.
func (q *qp) tripSince(at int64) int64 {
	d := max(q.core.clock()-at, 1)
	if s := q.loss.trip.smooth; s > 0 {
		d = min(d, max(int64(verbs.AckTimeout(q.attr.Timeout)), 4*s))
	}
	return d
}

// timeout returns the time to wait for a response, 0 before the first measurement.
func (t *roundTrip) timeout() int64 { return t.smooth + max(4*t.spread, t.smooth) }

// lossLimiter limits the cost of a lost packet. The peer drops all packets behind a gap, so each loss
// wastes the packets in flight. On a lossy path, the window is the usual number of packets between two
// losses, so that no more packets are wasted than delivered. At 1% loss on a link that holds 256
// packets, a QP alone on the link reaches 0.21 of its rate with 1.9 times the packets needed. With the
// full window, which starves others, it reaches 0.27 with 3.5 times.
type lossLimiter struct {
	// run counts packets acknowledged since the last go-back.
	run uint64
	// usual is the average of run at a go-back, in sixteenths of a packet, 0 before the first go-back.
	usual int64
	// losses counts go-backs, up to maxLosses. Until then all have equal weight in usual.
	losses uint32
	// limit is the maximum number of unacknowledged packets, 0 if only the link's windows apply.
	limit uint32
}

const (
	// minLimit is the lowest limit, for paths that lose most packets.
	minLimit = 4
	// firstLosses is the weight of the window in the average before the first loss.
	firstLosses = 3
	maxLosses   = 16
)

// adaptLimit adapts the limit on a go-back.
func (q *qp) adaptLimit() {
	c := &q.loss.lossLimiter
	if c.run == 0 {
		return // the same loss: no packet was acknowledged since the last go-back
	}
	n, _ := q.core.traits.windows(q.path, q.seg)
	if c.usual == 0 {
		c.usual, c.losses = 16*int64(n), firstLosses
	}
	c.losses = min(c.losses+1, maxLosses)
	c.usual += (16*int64(min(c.run, 4*uint64(n))) - c.usual) / int64(c.losses)
	c.run = 0
	q.setLimit(uint64(c.usual) * 15 / 256)
}

// countAcked counts acknowledged packets. The limit grows to a quarter of run once run exceeds four times
// the limit.
func (q *qp) countAcked(n uint32) {
	c := &q.loss.lossLimiter
	if c.run += uint64(n); c.limit > 0 && c.run/4 > uint64(c.limit) {
		q.setLimit(c.run / 4)
	}
}

// setLimit limits the unacknowledged packets to n, or less if the windows of the link are smaller.
func (q *qp) setLimit(n uint64) {
	q.window, q.longWindow = q.core.traits.windows(q.path, q.seg)
	if q.loss.limit = 0; n < uint64(q.window) {
		q.loss.limit = uint32(max(n, minLimit))
		q.window, q.longWindow = min(q.window, q.loss.limit), min(q.longWindow, q.loss.limit)
	}
	q.setAckRequests()
}

// setAckRequests selects the packets of a long message that request an ACK.
func (q *qp) setAckRequests() {
	part := 4
	if q.core.udpNIC != nil && q.loss.limit == 0 {
		part = 2 // an ACK costs a system call on both sides
	}
	q.ackMask = roce.PSN(ring.CeilPow2((int(q.longWindow)+part-1)/part) - 1)
}

// goBackOnce goes back once per gap, because all packets in flight behind a loss report it.
func (q *qp) goBackOnce() {
	switch {
	case q.loss.wentBack && q.loss.wentTo == q.una:
	case q.justWentBack():
		q.ignoreLoss()
	default:
		q.loss.wentBack, q.loss.wentTo = true, q.una
		q.goBack()
	}
}

// justWentBack reports whether the last go-back is so recent that a reported loss must be an earlier one. It
// always returns false without a timeout.
func (q *qp) justWentBack() bool {
	return q.attr.Timeout != 0 && q.core.clock()-q.loss.wentAt < q.loss.trip.least/2
}

// ignoreLoss ignores a loss report that seems to stem from packets sent before the last go-back. The peer
// reports a loss only once, so a probe follows soon in case the guess was wrong.
func (q *qp) ignoreLoss() {
	if q.timerIdx >= 0 && !q.rnrWait {
		q.armedUna = q.una
		q.core.timers.set(q, min(q.deadline, q.loss.wentAt+q.loss.trip.timeout()))
	}
}

// goBack retransmits from the oldest unacknowledged packet and restarts the timeout.
func (q *qp) goBack() {
	q.nic.stats.GoBacks++
	q.trouble.GoBacks++
	q.loss.wentAt = q.core.clock()
	q.loss.trip.running, q.loss.trip.again = false, false
	q.adaptLimit()
	q.seek(q.una)
	if q.timerIdx >= 0 && !q.rnrWait {
		q.core.timers.drop(q)
	}
	q.core.lists.tx.push(q)
}

// armTimer starts the response timeout: the QP's, or a longer one for a slow peer.
func (q *qp) armTimer(now int64) {
	q.armedUna, q.lateOnce = q.una, false
	if l := q.core.traits.shm; l != nil {
		q.peerServed = l.peer.peers.Taken().Load()
	}
	if q.paced {
		q.core.timers.set(q, now+int64(paceTimeout))
		return
	}
	// The timeout may be up to four times the coded value (IBTA 1.4 section 9.7.6.1.3).
	t := int64(max(verbs.AckTimeout(q.attr.Timeout), time.Microsecond)) << min(q.nic.probeBackoff, 2)
	q.deadline = now + max(t, q.loss.trip.timeout())
	if q.probePause = int64(q.core.traits.probeAfter) << q.nic.probeBackoff; q.probePause > 0 {
		q.probePause = max(q.probePause, 2*q.loss.trip.smooth)
	}
	q.setTimer(now)
}
