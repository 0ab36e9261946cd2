package softnic

import (
	"ibverbx/internal/bulk"
	"ibverbx/internal/roce"
	"ibverbx/verbs"
)

// responder is the part of a QP that serves the peer.
type responder struct {
	epsn    roce.PSN // the PSN expected next
	asked   uint32   // how many PSNs right before it are of READs and atomics
	msn     uint32   // messages completed
	commEst bool     // the communication-established event was raised
	ackDue  bool     // the peer asked for an acknowledgement
	nakSent bool     // a gap was reported, and the PSN that fills it has not come
	dying   bool     // a fatal NAK is on its way; nothing more is served

	// nakSyndrome is the NAK to be sent when the answers before it are out, 0 if none.
	nakSyndrome uint8
	nakPSN      roce.PSN

	// The message being received: its kind (opIsSend or opIsWrite, 0 between
	// messages), the bytes placed, and for a WRITE where the rest goes.
	msgKind opTraits
	placed  uint32
	va      uint64
	rkey    uint32
	left    uint32

	// cur is the receive that the message being received has taken.
	cur    recvWQE
	hasCur bool

	// jobs is a ring of READ and atomic answers to be sent; replay holds the results
	// of the last atomics, so that a duplicate is not executed again.
	jobs             []job
	jobHead, jobTail uint32
	jobCount         [2]uint8 // new ones, duplicates
	replay           []atomicResult
	replayNext       int
}

// receiveRequest takes a request packet of an RC peer.
func (q *qp) receiveRequest(p *packet, op uint8) {
	if q.dying {
		return
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
	if !q.wellFormed(p, t) {
		q.refuse(roce.NAKInvalidRequest, verbs.StatusSuccess)
		return
	}
	var done bool
	switch {
	case t&opIsWrite != 0:
		done = q.placeWrite(p, t)
	case t&opIsSend != 0:
		done = q.placeSend(p, t)
	case op == roce.OpReadRequest:
		q.serveRead(p)
		return
	default:
		q.serveAtomic(p, op)
		return
	}
	if !done {
		return
	}
	q.filled()
	q.epsn, q.asked = q.epsn.Add(1), 0
	if t&opEnds != 0 {
		q.msn++
	}
	if p.AckReq && (!q.ackDue || !q.ackListed) {
		q.owe()
	}
}

// wellFormed checks that a packet continues the message before it, and has the length
// that its place in the message asks for (IBTA 1.4 sections 9.7.4.1.1 to 9.7.4.1.4).
func (q *qp) wellFormed(p *packet, t opTraits) bool {
	if t&opStarts != 0 {
		if q.msgKind != 0 {
			return false
		}
	} else if q.msgKind == 0 || q.msgKind != t&(opIsSend|opIsWrite) {
		return false
	}
	switch {
	case t&opEnds == 0:
		return p.length == q.seg
	case t&opStarts == 0:
		return p.length > 0 && p.length <= q.seg
	}
	return p.length <= q.seg
}

// owe notes that the peer wants an acknowledgement. It is sent when the packets at
// hand have been served, so that one covers them all.
func (q *qp) owe() {
	q.ackDue = true
	q.listAck()
}

func (q *qp) listAck() {
	if !q.ackListed {
		q.ackListed = true
		q.core.acks.push(q)
	}
}

// flushAck sends the acknowledgement or NAK that is due, unless answers to READs and
// atomics must go first.
func (q *qp) flushAck() {
	if q.jobHead != q.jobTail || !receivable[q.state] {
		return
	}
	syndrome, psn := q.nakSyndrome, q.nakPSN
	if syndrome == roce.NAKSequence {
		// What filled the gap may have come meanwhile; what followed it was dropped and
		// is still missing.
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

// ackPSN returns the PSN that an acknowledgement names: that of the last SEND or WRITE. READs
// and atomics behind it are answered by their data. An acknowledgement that names one of them
// may come before the data, or the data may be lost, and the kernel's Soft-RoCE takes it for
// the whole answer.
func (q *qp) ackPSN() roce.PSN { return q.epsn.Add(roce.PSNMask - q.asked) }

func (q *qp) sendAck(syndrome uint8, psn roce.PSN) {
	p := &q.nic.scratch
	p.noPayload()
	p.path, p.Opcode, p.DestQPN, p.PSN = q.path, roce.RC|roce.OpAck, q.attr.DestQPN, psn
	p.AckReq, p.Solicited = false, false
	p.Syndrome, p.MSN = syndrome, q.msn&roce.PSNMask
	q.nic.stats.PacketsSent++
	q.link.send(q.nic, p)
}

// sendNak makes a NAK for the expected PSN due.
func (q *qp) sendNak(syndrome uint8) {
	q.nakSent = true
	q.nakSyndrome, q.nakPSN = syndrome, q.epsn
	q.listAck()
}

// filled notes that the expected PSN has come. The peer need not be told any more that
// there was no receive for it.
func (q *qp) filled() {
	q.nakSent = false
	if q.nakSyndrome&roce.SyndromeKind == roce.SyndromeRNR {
		q.nakSyndrome = 0
	}
}

// sequenceGap reports a lost packet, once (IBTA 1.4 section 9.7.5.2.8).
func (q *qp) sequenceGap() {
	q.nic.stats.OutOfOrder++
	if !q.nakSent {
		q.nic.stats.NAKsSent++
		q.sendNak(roce.NAKSequence)
	}
}

// receiverNotReady asks the peer to come again later.
func (q *qp) receiverNotReady() {
	q.nic.stats.RNRNAKsSent++
	q.sendNak(roce.SyndromeRNR | q.attr.MinRNRTimer)
}

// refuse ends the QP for a request that cannot be served: a NAK to the peer, an event
// or a failed receive here, and then the error state (IBTA 1.4 section 9.9.3).
func (q *qp) refuse(syndrome uint8, recvStatus verbs.Status) {
	q.nic.stats.NAKsSent++
	q.dying = true
	q.sendNak(syndrome)
	switch {
	case recvStatus != verbs.StatusSuccess && q.hasCur:
		q.completeRecv(recvStatus, true)
	case syndrome == roce.NAKRemoteAccess:
		q.raise(verbs.EventQPAccessErr)
	default:
		q.raise(verbs.EventQPReqErr)
	}
}

// placeSend puts the payload of a SEND into the receive that the message has taken. It
// reports whether the packet is done.
func (q *qp) placeSend(p *packet, t opTraits) bool {
	if t&opStarts != 0 {
		if !q.takeRecv() {
			q.receiverNotReady()
			return false
		}
		q.msgKind, q.placed = opIsSend, 0
	}
	s := verbs.StatusLocLenErr
	if q.placed+p.length <= maxMsgSize {
		s = q.scatter(q.cur.sge[:q.cur.numSGE], q.placed, p)
	}
	if s != verbs.StatusSuccess {
		if s == verbs.StatusLocLenErr {
			q.refuse(roce.NAKInvalidRequest, s)
		} else {
			q.refuse(roce.NAKRemoteOperation, s)
		}
		return false
	}
	q.placed += p.length
	if t&opEnds != 0 {
		q.endMessage(p, t, verbs.WCRecv)
	}
	return true
}

// placeWrite puts the payload of a WRITE where its RETH says. It reports whether the
// packet is done.
func (q *qp) placeWrite(p *packet, t opTraits) bool {
	va, rkey, left, placed := q.va, q.rkey, q.left, q.placed
	if t&opStarts != 0 {
		va, rkey, left, placed = p.VA, p.RKey, p.DMALen, 0
		if q.attr.Access&verbs.AccessRemoteWrite == 0 {
			// An operation that the receive queue does not support is an invalid
			// request; only the region's refusal is an access error (IBTA 1.4
			// section 11.6.2).
			q.refuse(roce.NAKInvalidRequest, verbs.StatusSuccess)
			return false
		}
	}
	if p.length > left || (t&opEnds != 0 && p.length != left) || left > maxMsgSize {
		q.refuse(roce.NAKInvalidRequest, verbs.StatusSuccess)
		return false
	}
	if left > 0 {
		// The whole rest must be there, not only this packet's part. A WRITE of no
		// bytes does not look at its key (IBTA 1.4 section 9.4.3.1.1).
		dst, ok := q.nic.mrs.find(q.pd, rkey, va, left, verbs.AccessRemoteWrite)
		if !ok {
			q.refuse(roce.NAKRemoteAccess, verbs.StatusSuccess)
			return false
		}
		if t&opHasImm != 0 && !q.takeRecv() {
			q.receiverNotReady()
			return false
		}
		if q.nic.observe != nil && p.length > 0 {
			q.touch(TouchRemoteWrite, va, p.length)
		}
		for k := range p.numSegs {
			dst = dst[bulk.Copy(dst, p.segs[k]):]
		}
	} else if t&opHasImm != 0 && !q.takeRecv() {
		q.receiverNotReady()
		return false
	}
	placed += p.length
	if t&opEnds != 0 {
		q.msgKind, q.placed = 0, placed
		if t&opHasImm != 0 {
			q.endMessage(p, t, verbs.WCRecvRDMAWithImm)
		}
		return true
	}
	q.msgKind = opIsWrite
	q.va, q.rkey, q.left, q.placed = va+uint64(p.length), rkey, left-p.length, placed
	return true
}

// endMessage completes the receive of a message that is wholly placed.
func (q *qp) endMessage(p *packet, t opTraits, op verbs.WCOpcode) {
	q.msgKind = 0
	wc := q.completeRecv(verbs.StatusSuccess, p.Solicited)
	wc.Opcode, wc.ByteLen = op, q.placed
	if t&opHasImm != 0 {
		wc.Flags, wc.Imm = verbs.WCWithImm, p.Imm
	}
}

// takeRecv makes cur the next receive. A receive that was taken and not used stays.
func (q *qp) takeRecv() bool {
	if q.hasCur {
		return true
	}
	if q.srq == nil {
		q.hasCur = q.rq.pop(&q.cur)
		return q.hasCur
	}
	if q.hasCur = q.srq.pop(&q.cur); q.hasCur {
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
	wc := q.recvCQ.push(used, 1, solicited || status != verbs.StatusSuccess)
	wc.WRID, wc.Status, wc.QPN = q.cur.wrid, status, q.num
	wc.Opcode, wc.Flags, wc.SL, wc.VendorErr, wc.ByteLen, wc.Imm, wc.SrcQPN = verbs.WCRecv, 0, 0, 0, 0, 0, 0
	return wc
}

// knows reports whether p comes from the QP's peer, and remembers the path if so.
func (q *qp) knows(p *path) bool {
	if p == q.from {
		return true
	}
	if p.sgid != q.path.dgid {
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
	}
}
