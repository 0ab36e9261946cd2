package softnic

import "ibverbx/verbs"

// failSend completes the oldest request with an error. An RC QP enters the error state; on UC and UD
// only the send queue stops (IBTA 1.4 section 10.3.1).
func (q *qp) failSend(status verbs.Status) {
	if q.failing {
		return
	}
	q.completeSend(q.wqe(q.sqHead), status)
	if q.typ == verbs.RC {
		if q.nic.hasRing() { // enterError serves the ring, which may be calling failSend
			q.failing = true
			q.core.lists.failing.push(q)
		} else {
			q.enterError()
		}
		return
	}
	q.state = verbs.StateSQE
	q.flushSends()
}

// enterError moves the QP to the error state and flushes all outstanding requests in order, including
// unsignaled ones.
func (q *qp) enterError() {
	if q.state == verbs.StateErr || q.state == verbs.StateReset {
		return
	}
	q.revoke()
	q.state, q.failing = verbs.StateErr, false
	if q.srq != nil {
		q.srq.forget(q)
	}
	q.core.timers.drop(q)
	q.stopResponder()
	q.flushSends()
	q.flushReceives()
	if !q.awaitsLanding() { // otherwise advance continues once all receives have completed
		q.raiseLastWQE()
	}
}

// raiseLastWQE reports that a QP in the error state has completed its last receive of the SRQ.
func (q *qp) raiseLastWQE() {
	if q.srq != nil {
		q.raise(verbs.EventLastWQEReached)
	}
}

// stopResponder drops all pending responses.
func (q *qp) stopResponder() {
	q.dropResponses()
	q.ackDue, q.nakSent, q.failingNAK, q.nakSyndrome = false, false, false, 0
	q.msgKind = 0
	q.rnrWait = false
}

// flushSends completes all posted sends with a flush error.
func (q *qp) flushSends() {
	if q.prefetch != nil {
		q.prefetch.requests.drop(0)
	}
	for q.sqHead != q.sqTail {
		q.completeSend(q.wqe(q.sqHead), verbs.StatusWRFlushErr)
	}
	q.sqNext, q.sqMax = q.sqTail, q.sqTail
	q.sqOff, q.reads = 0, 0
	q.una = q.snd
	q.maxPSN = q.snd
	q.charge()
}

// flushReceives completes all posted receives with a flush error.
func (q *qp) flushReceives() {
	if q.hasCur {
		q.completeRecv(verbs.StatusWRFlushErr, true)
	}
	if q.srq != nil {
		return // the receives belong to the SRQ
	}
	for q.rq.pop(&q.cur, &q.curList) {
		q.completeRecv(verbs.StatusWRFlushErr, true)
	}
}

// fatal fails the QP with EventQPFatal, for example when its CQ has overrun.
func (q *qp) fatal() {
	if q.closed || q.state == verbs.StateErr || q.state == verbs.StateReset {
		return
	}
	q.raise(verbs.EventQPFatal)
	q.enterError()
}

// reset returns the QP to its initial state. Posted requests vanish without a completion, and unpolled
// completions are removed from the CQs, as hardware drivers do.
func (q *qp) reset() {
	q.revoke()
	q.unpair()
	q.core.timers.drop(q)
	q.stopResponder()
	q.dropLandings()
	if q.prefetch != nil {
		q.prefetch.requests.drop(0)
	}
	if q.srq != nil {
		if q.srq.forget(q); q.hasCur {
			q.srq.used.free(1)
		}
	}
	q.sendCQ.discard(q)
	if q.recvCQ != q.sendCQ {
		q.recvCQ.discard(q)
	}
	q.state = verbs.StateReset
	q.sqHead, q.sqNext, q.sqMax, q.sqTail, q.withoutCQE = 0, 0, 0, 0, 0
	q.sqUsed.clear()
	q.sqOff, q.reads, q.drained = 0, 0, false
	q.snd, q.una, q.maxPSN = 0, 0, 0
	q.probed, q.loss = false, lossState{}
	q.charge()
	q.rq.ring.Truncate(q.rq.ring.Head())
	q.rq.lists.Truncate(q.rq.lists.Head())
	if q.rq.used != nil {
		q.rq.used.clear()
	}
	q.responder = responder{}
	q.restartCredits(q.rq.ring.Tail())
	q.switchBudget(nil)
	q.path, q.from, q.assoc = nil, nil, nil
}
