package softnic

import (
	"encoding/binary"
	"time"

	"ibverbx/internal/roce"
	"ibverbx/verbs"
)

// receiveResponse takes an answer of the peer: an acknowledgement, a NAK, or the data
// of a READ or atomic. What does not answer anything outstanding is dropped.
func (q *qp) receiveResponse(p *packet, op uint8) {
	if p.PSN.Sub(q.una) < 0 || p.PSN.Sub(q.maxPSN) >= 0 || q.state == verbs.StateRTR {
		return
	}
	switch op {
	case roce.OpAck:
		q.acknowledge(p)
	case roce.OpAtomicAck:
		q.atomicResponse(p)
	default:
		q.readResponse(p, op)
	}
	q.charge()
	if q.state == verbs.StateErr {
		return
	}
	if q.sqNext != q.sqTail || q.state == verbs.StateSQD {
		q.core.schedule(q)
	}
}

// progressed notes that the peer answered something new. It comes before whatever else the
// answer says, so that a NAK counts against the full number of retries.
func (q *qp) progressed() {
	q.retryLeft, q.rnrLeft = q.attr.RetryCount, q.attr.RNRRetry
	if q.snd.Sub(q.una) < 0 {
		q.seek(q.una) // an answer to what was sent before going back
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
		if q.una == p.PSN && !q.rnrWait { // a probe, or a packet that came twice, is refused as well
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

// ackTo completes what an acknowledgement of psn covers. It reports a gap: a READ or
// atomic that was acknowledged although its answer has not come.
func (q *qp) ackTo(psn roce.PSN) (gap bool) {
	una := q.una
	gap = q.retireTo(psn)
	if q.una != una {
		q.progressed()
		if q.probed {
			q.afterProbe(una)
		}
	}
	return gap
}

func (q *qp) retireTo(psn roce.PSN) (gap bool) {
	for q.sqHead != q.sqMax {
		w := &q.sq[int(q.sqHead)&(len(q.sq)-1)]
		if w.isRequest() {
			return psn.Sub(q.una) >= 0 // una is within w: all before it has ended
		}
		if psn.Sub(w.last) < 0 {
			if psn.Sub(q.una) >= 0 {
				q.una = psn.Add(1)
			}
			return false
		}
		q.una = w.last.Add(1)
		q.completeSend(w, verbs.StatusSuccess)
	}
	return false
}

// completeSend ends the oldest request. Unsignaled successes are silent; their slots
// go back with the next completion.
func (q *qp) completeSend(w *sendWQE, status verbs.Status) {
	q.sqHead++
	q.unreported++
	if status == verbs.StatusSuccess && w.flags&verbs.SendSignaled == 0 && !q.signalAll {
		return
	}
	wc := q.sendCQ.push(q.sqUsed, q.unreported, status != verbs.StatusSuccess)
	q.unreported = 0
	// Field by field: a composite literal is built aside and copied, which takes
	// longer than the rest of the function.
	wc.WRID, wc.Status, wc.Opcode, wc.QPN, wc.ByteLen = w.wrid, status, w.opcode.WC(), q.num, w.length
	wc.Flags, wc.SL, wc.VendorErr, wc.Imm, wc.SrcQPN = 0, 0, 0, 0, 0
}

// answered returns the request that an answer with data is for: the oldest, if it is
// of the right kind and psn is the next one that it waits for. Requests before it are
// complete by the answer.
func (q *qp) answered(psn roce.PSN, read bool) *sendWQE {
	gap := q.ackTo(psn.Add(roce.PSNMask))
	if gap || q.una != psn || q.sqHead == q.sqMax {
		q.goBackOnce()
		return nil
	}
	w := &q.sq[int(q.sqHead)&(len(q.sq)-1)]
	if !w.isRequest() || (w.opcode == verbs.OpRDMARead) != read {
		q.failSend(verbs.StatusBadRespErr)
		return nil
	}
	return w
}

func (q *qp) readResponse(p *packet, op uint8) {
	w := q.answered(p.PSN, true)
	if w == nil {
		return
	}
	off := uint32(p.PSN.Sub(w.first)) * q.seg
	last := p.PSN == w.last
	// An answer ends where its request did: see sendRequest.
	ends := last || (q.readAhead > 0 && (off/q.seg+1)%q.readAhead == 0)
	if p.length != min(q.seg, w.length-off) || (traits[op]&opEnds != 0) != ends {
		q.failSend(verbs.StatusBadRespErr)
		return
	}
	if s := q.scatter(w.sge[:w.numSGE], off, p); s != verbs.StatusSuccess {
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
	q.progressed()
}

func (q *qp) atomicResponse(p *packet) {
	w := q.answered(p.PSN, false)
	if w == nil {
		return
	}
	b := q.nic.word[:]
	binary.NativeEndian.PutUint64(b, p.Original)
	if s := q.scatterBytes(w.sge[:w.numSGE], 0, b); s != verbs.StatusSuccess {
		q.failSend(s)
		return
	}
	if q.snd.Sub(p.PSN) > 0 {
		q.reads--
	}
	q.una = p.PSN.Add(1)
	q.completeSend(w, verbs.StatusSuccess)
	q.progressed()
}

// notReady handles an RNR NAK: wait as long as the peer asks, then send again.
func (q *qp) notReady(code uint8) {
	if q.attr.RNRRetry != 7 {
		if q.rnrLeft == 0 {
			q.failSend(verbs.StatusRNRRetryExcErr)
			return
		}
		q.rnrLeft--
	}
	q.retryLeft = q.attr.RetryCount // the peer is there: only its silence counts as a retry
	q.rnrWait = true
	q.seek(q.una)
	q.core.timers.set(q, q.core.clock()+int64(verbs.RNRTimer(code)))
}

// nakStatus is what a requester reports for a NAK code (IBTA 1.4 table 61).
var nakStatus = map[uint8]verbs.Status{
	roce.NAKInvalidRequest:  verbs.StatusRemInvReqErr,
	roce.NAKRemoteAccess:    verbs.StatusRemAccessErr,
	roce.NAKRemoteOperation: verbs.StatusRemOpErr,
}

// nak handles a NAK of the oldest request.
func (q *qp) nak(syndrome uint8) {
	if syndrome == roce.NAKSequence {
		q.retry()
		return
	}
	status, ok := nakStatus[syndrome]
	if !ok {
		status = verbs.StatusBadRespErr
	}
	q.failSend(status)
}

// retry sends again from the oldest unacknowledged packet on, as long as there are
// retries left.
func (q *qp) retry() {
	if q.retryLeft == 0 {
		q.failSend(verbs.StatusRetryExcErr)
		return
	}
	q.retryLeft--
	q.goBack()
}

// goBackOnce goes back unless that was done for the same gap already: the packets that
// were in flight behind a loss all tell of it.
func (q *qp) goBackOnce() {
	if !q.wentBack || q.wentAt != q.una {
		q.wentBack, q.wentAt = true, q.una
		q.goBack()
	}
}

func (q *qp) goBack() {
	q.nic.stats.Retransmits++
	q.seek(q.una)
	q.core.schedule(q)
}

// seek moves the send cursor to psn, which must be between una and maxPSN.
func (q *qp) seek(psn roce.PSN) {
	q.reads = 0
	q.snd, q.sqOff = psn, 0
	for q.sqNext = q.sqHead; q.sqNext != q.sqMax; q.sqNext++ {
		w := &q.sq[int(q.sqNext)&(len(q.sq)-1)]
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
	return q.una != q.snd && q.timerIdx < 0 && q.attr.Timeout != 0 && !q.rnrWait && q.typ == verbs.RC &&
		(q.state == verbs.StateRTS || q.state == verbs.StateSQD)
}

func (q *qp) armTimer(now int64) {
	q.armedUna, q.excused = q.una, false
	// The time may be up to four times that of the code (IBTA 1.4 section 9.7.6.1.3).
	q.deadline = now + int64(max(verbs.AckTimeout(q.attr.Timeout), time.Microsecond))<<min(q.nic.patience, 2)
	q.probePause = int64(q.core.probeAfter) << q.nic.patience
	q.setTimer(now)
}

// setTimer makes the timer fire when the peer's time is up, or before that for a probe.
func (q *qp) setTimer(now int64) {
	at := q.deadline
	if q.probePause > 0 {
		at = min(at, now+q.probePause)
	}
	q.core.timers.set(q, at)
}

// lateTimer is how late a timer may be. One that is later tells of this process, which was
// not running, and nothing of the peer: its time begins anew, once. A process that is always
// late would never give up a peer otherwise.
const lateTimer = 20 * time.Millisecond

// timeout is called when the QP's timer has fired.
func (q *qp) timeout(now int64) {
	if q.state != verbs.StateRTS && q.state != verbs.StateSQD {
		return
	}
	if q.rnrWait {
		q.rnrWait = false
		q.core.schedule(q)
		return
	}
	if q.una == q.snd {
		return
	}
	if q.una != q.armedUna {
		q.armTimer(now) // something was answered since
		return
	}
	if q.core.batched && !q.excused && now-q.timerAt > int64(lateTimer) {
		q.armTimer(now)
		q.excused = true
	}
	if now < q.deadline {
		q.probe(now)
		return
	}
	q.nic.stats.Timeouts++
	q.wentBack = false
	if q.core.probeAfter == 0 || q.retryLeft == 0 {
		q.retry()
		return
	}
	q.retryLeft--
	q.armTimer(now)
	q.probe(now)
}
