package softnic

import (
	"encoding/binary"
	"time"

	"ibverbx/internal/roce"
	"ibverbx/verbs"
)

// receiveResponse handles a response from the peer: an ACK, a NAK, READ data or an atomic result. It
// drops a response that matches no outstanding packet.
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

// progressed records that the peer has acknowledged new packets. It is called before the rest of the
// response is processed, so that a NAK counts against a full retry budget.
func (q *qp) progressed(packets uint32) {
	q.countAcked(packets)
	if q.loss.trip.running && q.una.Sub(q.loss.trip.psn) > 0 {
		q.measured()
	}
	q.retryLeft, q.rnrLeft = q.attr.RetryCount, q.attr.RNRRetry
	if q.snd.Sub(q.una) < 0 {
		q.seek(q.una) // a response to packets sent before the go-back
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
		if q.una == p.PSN && !q.rnrWait { // peers also reject probes and duplicates
			q.notReady(p.Syndrome &^ roce.SyndromeKind)
		}
	case roce.NAKSequence:
		q.ackTo(p.PSN.Add(roce.PSNMask))
		if q.una == p.PSN {
			q.nak(p.Syndrome)
		} else {
			q.goBackOnce() // an earlier response was lost
		}
	}
}

// ackTo completes the requests covered by an ACK of psn. It reports a gap: an acknowledged READ or
// atomic whose response has not arrived.
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
	// Field by field: the compiler would build a composite literal elsewhere and copy it, which takes
	// longer than the rest of the function.
	wc.WRID, wc.Status, wc.Opcode, wc.QPN, wc.ByteLen = w.wrid, status, w.opcode.WC(), q.num, w.length
	wc.Flags, wc.SL, wc.VendorErr, wc.Imm, wc.SrcQPN = 0, 0, 0, 0, 0
}

// response handles READ data or an atomic result. It must be the next packet expected by the oldest
// READ or atomic. It also acknowledges all earlier requests.
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
		// A response ends where its request packet ended: see sendRequest.
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
		q.reads-- // only requests before snd are counted
	}
	q.una = p.PSN.Add(1)
	if last {
		q.completeSend(w, verbs.StatusSuccess)
	}
	q.progressed(1)
}

// notReady handles an RNR NAK: the QP waits for the time given by the peer, then retransmits.
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

// resume cuts short the wait after an RNR NAK, because the peer has posted a receive (see announceReceive). The
// wait does not count as a retry.
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

// retry retransmits from the oldest unacknowledged packet, or fails the request if no retries are left.
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

// needsTimer reports whether the ACK timer must be started.
func (q *qp) needsTimer() bool {
	return (q.una != q.snd || q.waitsForPeer()) && q.timerIdx < 0 && (q.attr.Timeout != 0 || q.paced) && !q.rnrWait && (q.typ == verbs.RC || q.paced) &&
		(q.state == verbs.StateRTS || q.state == verbs.StateSQD)
}

// setTimer sets the timer to the deadline, or earlier for a probe.
func (q *qp) setTimer(now int64) {
	at := q.deadline
	if q.probePause > 0 {
		at = min(at, now+q.probePause)
	}
	q.core.timers.set(q, at)
}

// lateTimer is the maximum lateness of a timer. A later timer means that this process was not running,
// which reveals nothing about the peer, so the timeout restarts, once. Restarting every time would keep
// a slow process from ever giving up on a dead peer.
const lateTimer = 20 * time.Millisecond

// timeout handles an expired timer of the QP.
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
		q.armTimer(now) // the peer has responded since
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

// Packets behind a loss reveal it. A loss at the end of a stream, or of the NAK itself, shows only as
// silence, and the timeout of a QP is long: 67 ms by default. On a link that may lose packets, the
// requester therefore probes earlier, but not before two round trips: it retransmits the oldest
// unacknowledged packet, with growing pauses. The response reveals the peer's state. A probe neither
// counts as a retry nor changes the deadline. Probes must not slow down a merely slow peer: each
// unnecessary one doubles the delay before the first probe, for all QPs of the NIC.

// maxProbeBackoff limits that doubling: from 2 ms, the first probe is delayed to at most 128 ms.
const maxProbeBackoff = 6

// probe retransmits only the oldest unacknowledged packet.
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

// afterProbe interprets the first response after a probe of PSN una. If it acknowledges only the probe,
// the peer has lost the later packets. If it acknowledges more, the peer had received everything and
// the probe was unnecessary.
func (q *qp) afterProbe(una roce.PSN) {
	q.probed = false
	n := q.nic
	switch {
	case q.una != una.Add(1):
		if q.loss.trip.least > 0 && q.core.clock()-q.loss.probedAt >= q.loss.trip.least {
			return // it may answer the probe: an earlier response was lost
		}
		n.probeBackoff = min(n.probeBackoff+1, maxProbeBackoff)
	case q.una != q.snd:
		n.probeBackoff -= min(n.probeBackoff, 1)
		q.goBackOnce()
	}
}
