package softnic

import (
	"encoding/binary"
	"time"

	"ibverbx/internal/roce"
	"ibverbx/verbs"
)

// receiveResponse handles a response of the peer: an acknowledgement, a NAK, or the data of a READ or atomic. A
// response to no outstanding request is dropped.
func (q *qp) receiveResponse(p *packet, op uint8) {
	if q.failing {
		return
	}
	if p.PSN.Sub(q.una) < 0 || p.PSN.Sub(q.maxPSN) >= 0 || q.state == verbs.StateRTR {
		if q.rnrWait && op == roce.OpAck && p.PSN.Add(1) == q.una && p.Syndrome&roce.SyndromeKind == roce.SyndromeAck&roce.SyndromeKind {
			q.resume()
		}
		q.duplicateResponse(p.PSN)
		return
	}
	if op == roce.OpAck {
		q.acknowledge(p)
	} else {
		q.response(p, op)
	}
	q.charge()
	if q.state == verbs.StateErr || q.failing {
		return
	}
	if q.sqNext != q.sqTail || q.state == verbs.StateSQD {
		q.core.lists.tx.push(q)
	}
}

// progressed accounts for newly acknowledged packets. It runs before the rest of the response is processed, so that a
// NAK counts against the full number of retries.
func (q *qp) progressed(packets uint32) {
	q.countAcked(packets)
	if q.loss.trip.running && q.una.Sub(q.loss.trip.psn) > 0 {
		q.measured()
	}
	q.retryLeft, q.rnrLeft = q.attr.RetryCount, q.attr.RNRRetry
	if q.snd.Sub(q.una) < 0 {
		q.seek(q.una) // an answer to packets that were sent before going back
	}
	if q.una == q.snd && q.timerIdx >= 0 && !q.rnrWait {
		q.core.timers.drop(q)
	}
}

func (q *qp) acknowledge(p *packet) {
	switch p.Syndrome & roce.SyndromeKind {
	case roce.SyndromeAck & roce.SyndromeKind:
		if q.ackTo(p.PSN) {
			q.goBackOnce()
		}
	case roce.SyndromeRNR:
		q.ackTo(p.PSN.Add(roce.PSNMask))
		if q.una == p.PSN && !q.rnrWait { // the peer refuses a probe or a duplicate as well
			q.notReady(p.Syndrome &^ roce.SyndromeKind)
		}
	case roce.NAKSequence:
		q.ackTo(p.PSN.Add(roce.PSNMask))
		if q.una == p.PSN {
			q.nak(p.Syndrome)
		} else {
			q.goBackOnce() // an answer before it was lost
		}
	}
}

// ackTo completes the requests that an acknowledgement of psn covers. It reports a gap: an acknowledged READ or atomic
// without a response.
func (q *qp) ackTo(psn roce.PSN) (gap bool) {
	una := q.una
	for q.sqHead != q.sqMax {
		w := q.wqe(q.sqHead)
		if w.isRequest() {
			gap = psn.Sub(q.una) >= 0 // una is within w: everything before it has completed
			break
		}
		if psn.Sub(w.last) < 0 {
			if psn.Sub(q.una) >= 0 {
				q.una = psn.Add(1)
			}
			break
		}
		q.una = w.last.Add(1)
		q.completeSend(w, verbs.StatusSuccess)
	}
	if q.una != una {
		q.progressed(uint32(q.una.Sub(una)))
		if q.probed {
			q.afterProbe(una)
		}
	}
	return gap
}

// completeSend completes the oldest request. Unsignaled successes write no completion: the next completion returns
// their slots.
func (q *qp) completeSend(w *sendWQE, status verbs.Status) {
	q.sqHead++
	if q.awaitsLanding() {
		q.deferSend(w, status)
		return
	}
	q.withoutCQE++
	if status == verbs.StatusSuccess && w.flags&verbs.SendSignaled == 0 && !q.signalAll {
		return
	}
	wc := q.sendCQ.push(q.sqUsed, q.withoutCQE, status != verbs.StatusSuccess)
	q.withoutCQE = 0
	// Field by field: the compiler builds a composite literal elsewhere and copies it, which takes
	// longer than the rest of the function.
	wc.WRID, wc.Status, wc.Opcode, wc.QPN, wc.ByteLen = w.wrid, status, w.opcode.WC(), q.num, w.length
	wc.Flags, wc.SL, wc.VendorErr, wc.Imm, wc.SrcQPN = 0, 0, 0, 0, 0
}

// response handles the data of a READ or the result of an atomic. It must be the next one that the oldest request
// waits for. Requests before that one are complete by it.
func (q *qp) response(p *packet, op uint8) {
	gap := q.ackTo(p.PSN.Add(roce.PSNMask))
	if gap || q.una != p.PSN || q.sqHead == q.sqMax {
		q.goBackOnce()
		return
	}
	w := q.wqe(q.sqHead)
	if !w.isRequest() || (w.opcode == verbs.OpRDMARead) != (op != roce.OpAtomicAck) {
		q.failSend(verbs.StatusBadRespErr)
		return
	}
	last, ends := p.PSN == w.last, true
	var s verbs.Status
	if op == roce.OpAtomicAck {
		b := q.nic.stage.placed[:8]
		binary.NativeEndian.PutUint64(b, p.Original)
		s = q.scatterBytes(q.sges(q.sqHead), 0, b, asRequester)
	} else {
		off, part := uint32(p.PSN.Sub(w.first))*q.seg, q.core.traits.readAhead
		// An answer ends where its request ended: see sendRequest.
		ends = last || (part > 0 && (off/q.seg+1)%part == 0)
		s = verbs.StatusBadRespErr
		if p.length == min(q.seg, w.length-off) && (traits[op]&opEnds != 0) == ends {
			s = q.scatter(q.sges(q.sqHead), off, p, asRequester)
		}
	}
	if s != verbs.StatusSuccess {
		q.failSend(s)
		return
	}
	if ends && q.snd.Sub(p.PSN) > 0 {
		q.reads-- // only those before snd are counted
	}
	q.una = p.PSN.Add(1)
	if last {
		q.completeSend(w, verbs.StatusSuccess)
	}
	q.progressed(1)
}

// notReady handles an RNR NAK: the QP waits for the time in it, then retransmits.
func (q *qp) notReady(code uint8) {
	if q.attr.RNRRetry != 7 {
		if q.rnrLeft == 0 {
			q.failSend(verbs.StatusRNRRetryExcErr)
			return
		}
		q.rnrLeft--
	}
	q.retryLeft = q.attr.RetryCount // the peer is alive: only silence counts as a retry
	q.rnrWait, q.loss.trip.running = true, false
	q.seek(q.una)
	q.core.timers.set(q, q.core.clock()+int64(verbs.RNRTimer(code)))
}

// resume ends the wait after an RNR NAK: the peer has announced a receive (see announceReceive). The wait does not
// count as a retry.
func (q *qp) resume() {
	if !q.core.distant() {
		return
	}
	if q.attr.RNRRetry != 7 {
		q.rnrLeft++
	}
	q.rnrWait = false
	q.core.timers.drop(q)
	q.core.lists.tx.push(q)
}

// nak handles a NAK of the oldest request (IBTA 1.4 table 61).
func (q *qp) nak(syndrome uint8) {
	switch syndrome {
	case roce.NAKSequence:
		if q.justWentBack() {
			q.ignoreLoss()
		} else {
			q.retry()
		}
	case roce.NAKInvalidRequest:
		q.failSend(verbs.StatusRemInvReqErr)
	case roce.NAKRemoteAccess:
		q.failSend(verbs.StatusRemAccessErr)
	case roce.NAKRemoteOperation:
		q.failSend(verbs.StatusRemOpErr)
	default:
		q.failSend(verbs.StatusBadRespErr)
	}
}

// retry retransmits from the oldest unacknowledged packet on, unless all retries are exhausted.
func (q *qp) retry() {
	if q.retryLeft == 0 {
		q.failSend(verbs.StatusRetryExcErr)
		return
	}
	q.retryLeft--
	q.goBack()
}

// seek moves the send cursor to psn, which must be between una and maxPSN.
func (q *qp) seek(psn roce.PSN) {
	q.reads = 0
	q.snd, q.sqOff = psn, 0
	for q.sqNext = q.sqHead; q.sqNext != q.sqMax; q.sqNext++ {
		w := q.wqe(q.sqNext)
		if psn.Sub(w.last) <= 0 {
			q.sqOff = uint32(psn.Sub(w.first)) * q.seg
			return
		}
		if w.isRequest() {
			q.reads++
		}
	}
}

// needsTimer reports whether the acknowledgement timer should run and does not.
func (q *qp) needsTimer() bool {
	return (q.una != q.snd || q.waitsForPeer()) && q.timerIdx < 0 && (q.attr.Timeout != 0 || q.paced) && !q.rnrWait && (q.typ == verbs.RC || q.paced) &&
		(q.state == verbs.StateRTS || q.state == verbs.StateSQD)
}

// setTimer makes the timer fire at the deadline, or earlier for a probe.
func (q *qp) setTimer(now int64) {
	at := q.deadline
	if q.probePause > 0 {
		at = min(at, now+q.probePause)
	}
	q.core.timers.set(q, at)
}

// lateTimer is the lateness above which a timer indicates that this process did not run. Such a timeout is no evidence
// about the peer, so the peer's timeout restarts, once. Otherwise a process that is always late would never give up on
// a dead peer.
const lateTimer = 20 * time.Millisecond

// timeout handles the QP's timer.
func (q *qp) timeout(now int64) {
	if q.state != verbs.StateRTS && q.state != verbs.StateSQD {
		return
	}
	if q.rnrWait {
		q.rnrWait = false
		q.core.lists.tx.push(q)
		return
	}
	if q.una == q.snd {
		if q.waitsForPeer() {
			q.ringTimeout(now)
		}
		return
	}
	if q.paced {
		q.paceExpired(now)
		return
	}
	if q.una != q.armedUna {
		q.armTimer(now) // something has been answered since
		return
	}
	if q.core.distant() && !q.lateOnce && now-q.timerAt > int64(lateTimer) {
		q.armTimer(now)
		q.lateOnce = true
	}
	if now < q.deadline {
		q.probe(now)
		return
	}
	q.nic.stats.Timeouts++
	q.trouble.Timeouts++
	q.loss.wentBack = false
	if q.core.traits.probeAfter == 0 || q.retryLeft == 0 {
		q.retry()
		q.noteRetransmit(now)
		return
	}
	q.retryLeft--
	q.armTimer(now)
	q.probe(now)
}

// Packets behind a loss report it. A loss at the end of a stream, or of the report, shows only as
// silence, and the timeout of a QP is long: 67 ms by default. So on a link that may lose packets
// the requester probes earlier, but not before two round trips: it sends the oldest unacknowledged
// packet again, with growing pauses. The response reports the peer's state. A probe does not count as a retry and does not change
// the deadline. Probes must not slow down a peer that is merely slow: each needless one doubles
// the time to the next first probe of all QPs of the NIC.

// maxProbeBackoff limits that doubling: the first probe, at 2 ms initially, is sent after at most 128 ms.
const maxProbeBackoff = 6

// probe retransmits the oldest unacknowledged packet, and nothing else.
func (q *qp) probe(now int64) {
	q.nic.stats.Probes++
	q.noteRetransmit(now)
	snd, next, off, reads := q.snd, q.sqNext, q.sqOff, q.reads
	q.probing = true
	q.seek(q.una)
	w := q.wqe(q.sqNext)
	if w.isRequest() {
		q.sendRequest(w)
	} else {
		q.sendData(w)
	}
	q.probing = false
	if q.state == verbs.StateErr || q.failing {
		return // the memory is no longer registered
	}
	q.snd, q.sqNext, q.sqOff, q.reads = snd, next, off, reads
	q.probed, q.loss.probedAt = true, now
	q.probePause *= 2
	q.setTimer(now)
}

// afterProbe evaluates the first response after a probe of PSN una. If it acknowledges only the probe, the peer has
// none of the packets behind it. If it acknowledges more, the peer had received everything and the probe was needless.
func (q *qp) afterProbe(una roce.PSN) {
	q.probed = false
	n := q.nic
	switch {
	case q.una != una.Add(1):
		if q.loss.trip.least > 0 && q.core.clock()-q.loss.probedAt >= q.loss.trip.least {
			return // it may answer the probe: an earlier answer was lost
		}
		n.probeBackoff = min(n.probeBackoff+1, maxProbeBackoff)
	case q.una != q.snd:
		n.probeBackoff -= min(n.probeBackoff, 1)
		q.goBackOnce()
	}
}
