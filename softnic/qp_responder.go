package softnic

import (
	"slices"

	"ibverbx/internal/ring"
	"ibverbx/internal/roce"
	"ibverbx/verbs"
)

// responder is the part of a QP that serves the peer.
type responder struct {
	// epsn is the next expected PSN.
	epsn roce.PSN
	// unackedPSNs is the number of PSNs directly before epsn that belong to READs and atomics: their responses
	// acknowledge them.
	unackedPSNs uint32
	// msn counts completed messages.
	msn uint32
	// commEst is set once the communication-established event was raised.
	commEst bool
	// ackDue is set if the peer has requested an acknowledgement.
	ackDue bool
	// nakSent is set after a gap was reported, until the missing PSN arrives.
	nakSent bool
	// rnrSent is set after an RNR NAK, until a receive is announced or consumed.
	rnrSent bool
	// failingNAK is set while a fatal NAK is due. No further request is served.
	failingNAK bool

	// nakSyndrome is the NAK to send after pending responses, 0 for none.
	nakSyndrome uint8
	// nakPSN is the PSN of that NAK.
	nakPSN roce.PSN

	// msgKind is opIsSend or opIsWrite while a message is being received, otherwise 0.
	msgKind opTraits
	// placed is the number of bytes of the message already placed.
	placed uint32
	// va is the address of the rest of a WRITE.
	va uint64
	// rkey is the remote key of a WRITE.
	rkey uint32
	// left is the number of outstanding bytes of a WRITE.
	left uint32

	// cur is the receive of the current message. It is valid if hasCur is set.
	cur    recvWQE
	hasCur bool
	// curList holds the SGEs of cur if they are a list.
	curList *sgeList

	// responses are the pending responses to READs and atomics.
	responses ring.Ring[pendingResponse]
	// responseCount counts responses: to new requests, and to duplicates.
	responseCount [2]uint8
	// replay is a ring of the last atomic results, from which duplicate atomics are answered.
	replay []atomicResult
	// replayNext is the slot of the next result in replay.
	replayNext int
	// answered is a ring of the last served READs. Only these may be repeated.
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
		return // after a line
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

// reject sends the NAK for a packet that was not placed.
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

// oweAck makes an acknowledgement due. It is sent once the available packets have been served, so that one
// acknowledgement covers them all.
func (q *qp) oweAck() {
	q.ackDue = true
	q.core.lists.acks.push(q)
}

// flushAck sends the acknowledgement or NAK that is due, unless responses to READs and atomics must precede it.
func (q *qp) flushAck() {
	if q.responses.Len() > 0 || !receivable[q.state] {
		return
	}
	if l := q.core.traits.shm; l != nil && !l.ackRoom(q) {
		return // it remains due
	}
	if p := q.landings.oldest(asResponder); p != nil {
		q.ackBefore(p) // the rest follows once all data is in place
		return
	}
	syndrome, psn := q.nakSyndrome, q.nakPSN
	if syndrome == roce.NAKSequence {
		// The missing packet may have come meanwhile. The packets behind it were dropped and are
		// still missing.
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

// ackPSN returns the PSN that an acknowledgement names: that of the last SEND or WRITE. READs and atomics behind it
// are acknowledged by their responses. The kernel's Soft-RoCE takes an acknowledgement that names one of them for the
// whole response, although the data may arrive later or be lost.
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

// sendNak makes a NAK for the expected PSN due.
func (q *qp) sendNak(syndrome uint8) {
	q.nakSent = true
	q.nakSyndrome, q.nakPSN = syndrome, q.epsn
	q.core.lists.acks.push(q)
}

// announceReceive tells a peer that waits after an RNR NAK that a receive is posted, by repeating the last
// acknowledgement. Only a softnic understands it. Other NICs ignore it and wait for the time in the NAK.
func (q *qp) announceReceive() {
	softnic := q.core.traits.shm != nil || (q.core.udpNIC != nil && q.path.route != nil && q.path.route.dest.Runs())
	if q.rnrSent && softnic && (!q.paced || !q.fewReceives()) {
		q.rnrSent = false
		if q.typ == verbs.RC && q.nakSyndrome&roce.SyndromeKind == roce.SyndromeRNR {
			q.nakSyndrome = roce.NAKSequence // the NAK waits for data to land, so the peer need not wait
		}
		q.oweAck()
		q.core.settle()
	}
}

// filled records the arrival of the expected PSN, which makes a pending RNR NAK for it obsolete.
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

// refuse fails the QP because of an invalid request: a NAK to the peer, an event or a failed receive here, and then
// the error state (IBTA 1.4 section 9.9.3).
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

// claimRecv makes cur the next receive. A receive that was claimed and not used stays.
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

// completeRecv completes cur. The caller fills in the other fields of a success.
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

// isFromPeer reports whether p leads from the QP's peer, from one of the ports that the peer has announced, if any. It
// then remembers the path.
func (q *qp) isFromPeer(p *path) bool {
	if p == q.from {
		return true
	}
	if p.sgid != q.path.dgid {
		return false
	}
	if w := q.path.route; w != nil && w.ports != nil && !slices.Contains(w.ports, p.port) {
		return false
	}
	q.from = p
	return true
}

// established raises the communication-established event of a QP in RTR.
func (q *qp) established() {
	if !q.commEst {
		q.commEst = true
		q.raise(verbs.EventCommEst)
		q.core.grant(q)
	}
}
