package softnic

import (
	"slices"

	"ibverbx/internal/ring"
	"ibverbx/internal/roce"
	"ibverbx/verbs"
)

// responder is the part of a QP that serves the peer.
type responder struct {
	// epsn is the PSN expected next.
	epsn roce.PSN
	// asked is how many PSNs right before epsn belong to READs and atomics that were not answered at once.
	asked uint32
	// msn counts completed messages.
	msn uint32
	// commEst says that the communication-established event was raised.
	commEst bool
	// ackDue says that the peer asked for an acknowledgement.
	ackDue bool
	// nakSent says that a gap was reported and the missing PSN has not come.
	nakSent bool
	// rnrSent says that the peer was told that there is no receive, and not that there is one.
	rnrSent bool
	// dying says that a fatal NAK is on its way. Nothing more is served.
	dying bool

	// nakSyndrome is the NAK to be sent after the answers before it, 0 if there is none.
	nakSyndrome uint8
	// nakPSN is the PSN of that NAK.
	nakPSN roce.PSN

	// msgKind is opIsSend or opIsWrite while a message is being received, otherwise 0.
	msgKind opTraits
	// placed is how many bytes of the message have been placed.
	placed uint32
	// va is where the rest of a WRITE goes.
	va uint64
	// rkey is the remote key of a WRITE.
	rkey uint32
	// left is how many bytes of a WRITE are still to come.
	left uint32

	// cur is the receive that the message being received has taken. It is valid if hasCur is set.
	cur    recvWQE
	hasCur bool
	// curList has the SGEs of cur if they are a list.
	curList *sgeList

	// jobs are the answers to READs and atomics that are still to be sent.
	jobs ring.Ring[job]
	// jobCount counts the jobs: those of new requests, and those of duplicates.
	jobCount [2]uint8
	// replay is a ring of the last atomic results. A duplicate atomic is answered from it.
	replay []atomicResult
	// replayNext is the slot of the next result in replay.
	replayNext int
	// answered is a ring of the last READs that were served. Only these may be asked for again.
	answered []servedRead
	// answeredNext is the slot of the next READ in answered.
	answeredNext int
}

// receiveRequest takes a request packet of an RC peer.
func (q *qp) receiveRequest(p *packet, op uint8) {
	if q.dying {
		return
	}
	if p.PSN.Sub(q.epsn) > 0 && q.nic.serveRings() && (q.dying || !receivable[q.state]) {
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
	q.epsn, q.asked = q.epsn.Add(1), 0
	if t&opEnds != 0 {
		q.msn++
	}
	if p.AckReq && (!q.ackDue || q.lists&onAcks == 0) {
		q.owe()
	}
}

// reject answers a packet that was not placed.
func (q *qp) reject(r placement) {
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

// owe notes that the peer wants an acknowledgement. It is sent when the packets at hand have been
// served, so that one acknowledgement covers them all.
func (q *qp) owe() {
	q.ackDue = true
	q.core.lists.acks.push(q)
}

// flushAck sends the acknowledgement or NAK that is due, unless answers to READs and atomics must
// go first.
func (q *qp) flushAck() {
	if q.jobs.Len() > 0 || !receivable[q.state] {
		return
	}
	if l := q.core.traits.shm; l != nil && !l.ackRoom(q) {
		return // it stays due
	}
	if p := q.landings.oldest(asResponder); p != nil {
		q.ackBefore(p) // the rest follows when all is in place
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
	if q.dying {
		q.enterError()
	}
}

// ackPSN returns the PSN that an acknowledgement names: that of the last SEND or WRITE. READs and
// atomics behind it are answered by their data. The kernel's Soft-RoCE takes an acknowledgement
// that names one of them for the whole answer, although the data may come later or be lost.
func (q *qp) ackPSN() roce.PSN { return q.epsn.Add(roce.PSNMask - q.asked) }

func (q *qp) sendAck(syndrome uint8, psn roce.PSN) {
	p := q.answer(psn)
	p.noPayload()
	p.Opcode, p.Syndrome = roce.RC|roce.OpAck, syndrome
	q.emit(p)
}

// answer begins a packet to the requester.
func (q *qp) answer(psn roce.PSN) *packet {
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

// ready tells a peer that waits for a receive that there is one, by acknowledging again what came before.
// Only a softnic understands it. Others ignore it and wait as long as the RNR NAK said.
func (q *qp) ready() {
	softnic := q.core.traits.shm != nil || (q.core.udpNIC != nil && q.path.route != nil && q.path.route.dest.Runs())
	if q.rnrSent && softnic && (!q.paced || !q.fewReceives()) {
		q.rnrSent = false
		if q.typ == verbs.RC && q.nakSyndrome&roce.SyndromeKind == roce.SyndromeRNR {
			q.nakSyndrome = roce.NAKSequence // it waits for bytes to land, so the peer need not
		}
		q.owe()
		q.core.settle()
	}
}

// filled notes that the expected PSN has come. A pending RNR NAK for it is obsolete.
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

// refuse ends the QP because of a request that cannot be served: a NAK to the peer, an event or a
// failed receive here, and then the error state (IBTA 1.4 section 9.9.3).
func (q *qp) refuse(syndrome uint8, recvStatus verbs.Status) {
	q.nic.stats.NAKsSent++
	q.trouble.NAKsSent++
	q.dying = true
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

// takeRecv makes cur the next receive. A receive that was taken and not used stays.
func (q *qp) takeRecv() bool {
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

// completeRecv reports cur. The caller fills in what a success has beyond its status.
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

// knows reports whether p comes from the QP's peer, from a port that the peer has announced if it has
// announced any, and remembers the path if so.
func (q *qp) knows(p *path) bool {
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

// established raises the event that tells a QP in RTR that its peer has begun.
func (q *qp) established() {
	if !q.commEst {
		q.commEst = true
		q.raise(verbs.EventCommEst)
		q.core.grant(q)
	}
}
