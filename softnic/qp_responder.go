package softnic

import (
	"slices"

	"ibverbx/internal/ring"
	"ibverbx/internal/roce"
	"ibverbx/verbs"
)

// responder is the state of a QP for requests of its peer.
type responder struct {
	// epsn is the next expected PSN.
	epsn roce.PSN
	// unackedPSNs is the number of PSNs directly before epsn used by READs and atomics with a separate
	// response.
	unackedPSNs uint32
	// msn counts completed messages.
	msn uint32
	// commEst is set once the communication-established event was raised.
	commEst bool
	// ackDue is set while an ACK is owed.
	ackDue bool
	// nakSent is set from a NAK until the missing PSN arrives.
	nakSent bool
	// rnrSent is set from an RNR NAK until the peer is notified of a new receive, or retries
	// successfully.
	rnrSent bool
	// failingNAK is set once a fatal NAK is pending. No further requests are served.
	failingNAK bool

	// nakSyndrome is the NAK to send after pending responses, 0 without one.
	nakSyndrome uint8
	// nakPSN is the PSN of that NAK.
	nakPSN roce.PSN

	// msgKind is opIsSend or opIsWrite while a message is being received, otherwise 0.
	msgKind opTraits
	// placed is the number of bytes of the message placed so far.
	placed uint32
	// va is the address for the rest of a WRITE.
	va uint64
	// rkey is the remote key of a WRITE.
	rkey uint32
	// left is the number of missing bytes of a WRITE.
	left uint32

	// cur is the receive of the current message. It is valid if hasCur is set.
	cur    recvWQE
	hasCur bool
	// curList holds the SGEs of cur if they are a list.
	curList *sgeList

	// responses are the pending responses to READs and atomics.
	responses ring.Ring[pendingResponse]
	// responseCount counts the responses to new requests, and to duplicates.
	responseCount [2]uint8
	// replay is a ring of the last atomic results. A duplicate atomic is answered from it.
	replay []atomicResult
	// replayNext is the slot of the next result in replay.
	replayNext int
	// answered is a ring of the last executed READs. Only these may be repeated.
	answered []servedRead
	// answeredNext is the slot of the next READ in answered.
	answeredNext int
}

// receiveRequest handles a request packet of an RC peer.
func (q *qp) receiveRequest(p *packet, op uint8) {
	if q.failingNAK {
		return
	}
	if p.PSN.Sub(q.epsn) > 0 && q.nic.serveRings() && (q.failingNAK || !receivable[q.state]) {
		return // a line has failed the QP
	}
	if d := p.PSN.Sub(q.epsn); d != 0 {
		if d > 0 {
			q.sequenceGap()
		} else {
			q.duplicate(p, op)
		}
		return
	}
	t := traits[op]
	switch {
	case !q.wellFormed(p, t):
		q.refuse(roce.NAKInvalidRequest, verbs.StatusSuccess)
		return
	case t&(opIsWrite|opIsSend) != 0:
		if r := q.place(p, t); r != placed {
			q.reject(r)
			return
		}
	case op == roce.OpReadRequest:
		q.serveRead(p)
		return
	default:
		q.serveAtomic(p, op)
		return
	}
	q.filled()
	q.epsn, q.unackedPSNs = q.epsn.Add(1), 0
	if t&opEnds != 0 {
		q.msn++
	}
	if p.AckReq && (!q.ackDue || q.lists&onAcks == 0) {
		q.oweAck()
	}
}

// reject responds to a packet that was not placed.
func (q *qp) reject(r placeResult) {
	switch r {
	case placeNoRecv:
		q.nic.stats.RNRNAKsSent++
		q.trouble.RNRNAKsSent++
		q.rnrSent = true
		q.sendNak(roce.SyndromeRNR | q.attr.MinRNRTimer)
	case placeNoAccess:
		q.refuse(roce.NAKRemoteAccess, verbs.StatusSuccess)
	case placeTooLong:
		q.refuse(roce.NAKInvalidRequest, verbs.StatusLocLenErr)
	case placeBadRecv:
		q.refuse(roce.NAKRemoteOperation, verbs.StatusLocProtErr)
	case placeFailed:
		q.refuse(roce.NAKRemoteOperation, verbs.StatusGeneralErr)
	default:
		q.refuse(roce.NAKInvalidRequest, verbs.StatusSuccess)
	}
}

// oweAck records that the peer awaits an ACK. It is sent once the packets at hand have been served, so
// that one ACK covers them all.
func (q *qp) oweAck() {
	q.ackDue = true
	q.core.lists.acks.push(q)
}

// flushAck sends the due ACK or NAK, unless responses to READs and atomics must precede it.
func (q *qp) flushAck() {
	if q.responses.Len() > 0 || !receivable[q.state] {
		return
	}
	if l := q.core.traits.shm; l != nil && !l.ackRoom(q) {
		return // it stays due
	}
	if p := q.landings.oldest(asResponder); p != nil {
		q.ackBefore(p) // the rest follows once all data is in place
		return
	}
	syndrome, psn := q.nakSyndrome, q.nakPSN
	if syndrome == roce.NAKSequence {
		// The missing packet may have arrived since. The packets behind it were dropped and are still
		// missing.
		psn = q.epsn
	}
	if q.ackDue && (syndrome == 0 || syndrome == roce.NAKSequence) {
		q.sendAck(roce.SyndromeAck, q.ackPSN())
	}
	q.ackDue, q.nakSyndrome = false, 0
	if syndrome != 0 {
		q.sendAck(syndrome, psn)
	}
	if q.failingNAK {
		q.enterError()
	}
}

// ackPSN returns the PSN for an ACK: the PSN of the last SEND or WRITE. Responses acknowledge the READs
// and atomics behind it. The kernel's Soft-RoCE treats an ACK of one of them as the complete response,
// although the data may arrive later or be lost.
func (q *qp) ackPSN() roce.PSN { return q.epsn.Add(roce.PSNMask - q.unackedPSNs) }

func (q *qp) sendAck(syndrome uint8, psn roce.PSN) {
	p := q.newResponse(psn)
	p.noPayload()
	p.Opcode, p.Syndrome = roce.RC|roce.OpAck, syndrome
	q.emit(p)
}

// newResponse starts a packet to the requester.
func (q *qp) newResponse(psn roce.PSN) *packet {
	p := &q.nic.scratch
	p.path, p.DestQPN, p.PSN = q.path, q.attr.DestQPN, psn
	p.AckReq, p.Solicited = false, false
	p.Syndrome, p.MSN = roce.SyndromeAck, q.msn&roce.PSNMask
	return p
}

// sendNak schedules a NAK for the expected PSN.
func (q *qp) sendNak(syndrome uint8) {
	q.nakSent = true
	q.nakSyndrome, q.nakPSN = syndrome, q.epsn
	q.core.lists.acks.push(q)
}

// announceReceive notifies a peer that waits for a receive that one was posted, by repeating the last ACK. Only
// softnics understand this. Others ignore it and wait for the time in the RNR NAK.
func (q *qp) announceReceive() {
	softnic := q.core.traits.shm != nil || (q.core.udpNIC != nil && q.path.route != nil && q.path.route.dest.Runs())
	if q.rnrSent && softnic && (!q.paced || !q.fewReceives()) {
		q.rnrSent = false
		if q.typ == verbs.RC && q.nakSyndrome&roce.SyndromeKind == roce.SyndromeRNR {
			q.nakSyndrome = roce.NAKSequence // the RNR NAK is still unsent, so the peer need not wait
		}
		q.oweAck()
		q.core.settle()
	}
}

// filled records the arrival of the expected PSN. A pending RNR NAK for it is obsolete.
func (q *qp) filled() {
	q.nakSent, q.rnrSent = false, false
	if q.nakSyndrome&roce.SyndromeKind == roce.SyndromeRNR {
		q.nakSyndrome = 0
	}
}

// sequenceGap reports a lost packet, once (IBTA 1.4 section 9.7.5.2.8).
func (q *qp) sequenceGap() {
	q.nic.stats.OutOfOrder++
	if !q.nakSent {
		q.nic.stats.NAKsSent++
		q.trouble.NAKsSent++
		q.sendNak(roce.NAKSequence)
	}
}

// refuse fails the QP after a request that cannot be served: it sends a NAK, raises an event or fails
// the receive, and then enters the error state (IBTA 1.4 section 9.9.3).
func (q *qp) refuse(syndrome uint8, recvStatus verbs.Status) {
	q.nic.stats.NAKsSent++
	q.trouble.NAKsSent++
	q.failingNAK = true
	q.sendNak(syndrome)
	switch {
	case recvStatus != verbs.StatusSuccess && q.hasCur:
		q.completeRecv(recvStatus, true)
	case syndrome == roce.NAKRemoteAccess:
		q.wrongKey()
		q.raise(verbs.EventQPAccessErr)
	default:
		q.raise(verbs.EventQPReqErr)
	}
}

// claimRecv dequeues the next receive into cur, unless cur holds an unused one. It returns false if none
// is available.
func (q *qp) claimRecv() bool {
	if q.hasCur {
		return true
	}
	if q.srq == nil {
		q.hasCur = q.rq.pop(&q.cur, &q.curList)
		return q.hasCur
	}
	if q.hasCur = q.srq.admit(q) && q.srq.pop(&q.cur, &q.curList); q.hasCur {
		q.srq.checkLimit()
	}
	return q.hasCur
}

// completeRecv completes cur. The caller adds the other fields of a success.
func (q *qp) completeRecv(status verbs.Status, solicited bool) *verbs.WC {
	q.hasCur = false
	used := q.rq.used
	if q.srq != nil {
		used = q.srq.used
	}
	solicited = solicited || status != verbs.StatusSuccess
	var wc *verbs.WC
	if q.awaitsLanding() {
		wc = q.landings.deferWC(deferredWC{role: asResponder, solicited: solicited, cq: q.recvCQ, used: used})
	} else {
		wc = q.recvCQ.push(used, 1, solicited)
	}
	wc.WRID, wc.Status, wc.QPN = q.cur.wrid, status, q.num
	wc.Opcode, wc.Flags, wc.SL, wc.VendorErr, wc.ByteLen, wc.Imm, wc.SrcQPN = verbs.WCRecv, 0, 0, 0, 0, 0, 0
	return wc
}

// isFromPeer reports whether p leads to the QP's peer, through an announced port if the peer has announced
// any. It then remembers p.
func (q *qp) isFromPeer(p *path) bool {
	if p == q.from {
		return true
	}
	if q.path == nil || p.sgid != q.path.dgid { // an unconnected QP has no path
		return false
	}
	if w := q.path.route; w != nil && w.ports != nil && !slices.Contains(w.ports, p.port) {
		return false
	}
	q.from = p
	return true
}

// established raises the event that notifies a QP in RTR of its peer's first packet.
func (q *qp) established() {
	if !q.commEst {
		q.commEst = true
		q.raise(verbs.EventCommEst)
		q.core.grant(q)
	}
}
