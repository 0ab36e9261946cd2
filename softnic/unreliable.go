package softnic

import (
	"ibverbx/internal/bulk"
	"ibverbx/internal/roce"
	"ibverbx/verbs"
)

// receiveUC takes a packet of a UC peer. There are no answers: a message that has lost
// a packet, or cannot be placed, is dropped, and the next one begins afresh (IBTA 1.4
// section 9.8.2.2).
func (q *qp) receiveUC(p *packet, op uint8) {
	t := traits[op]
	if t&(opIsSend|opIsWrite) == 0 || q.dying {
		return
	}
	switch {
	case t&opStarts != 0:
		if q.msgKind != 0 {
			q.dropMessage() // the rest of the one before was lost
		}
	case p.PSN != q.epsn || q.msgKind != t&(opIsSend|opIsWrite):
		if q.msgKind != 0 {
			q.dropMessage()
		}
		return
	}
	q.epsn = p.PSN.Add(1)
	if !q.placeUC(p, t) {
		q.dropMessage()
	}
}

// dropMessage gives up the message being received. The receive that it took, if any,
// serves the next one.
func (q *qp) dropMessage() {
	q.nic.stats.MessagesDropped++
	q.msgKind = 0
}

// placeUC places one packet and reports whether the message goes on.
func (q *qp) placeUC(p *packet, t opTraits) bool {
	short := t&opEnds == 0 && p.length != q.seg
	if short || p.length > q.seg {
		return false
	}
	if t&opStarts != 0 {
		q.placed = 0
		if t&opIsWrite != 0 {
			if q.attr.Access&verbs.AccessRemoteWrite == 0 {
				return false
			}
			q.va, q.rkey, q.left = p.VA, p.RKey, p.DMALen
		} else if !q.takeRecv() {
			return false
		}
	}
	q.msgKind = t & (opIsSend | opIsWrite)
	if t&opIsSend != 0 {
		return q.placeUCSend(p, t)
	}
	return q.placeUCWrite(p, t)
}

func (q *qp) placeUCSend(p *packet, t opTraits) bool {
	if q.placed+p.length > maxMsgSize {
		return false
	}
	switch q.scatter(q.cur.sge[:q.cur.numSGE], q.placed, p) {
	case verbs.StatusSuccess:
	case verbs.StatusLocProtErr:
		q.failRecv(verbs.StatusLocProtErr)
		return true
	default:
		return false
	}
	q.placed += p.length
	if t&opEnds != 0 {
		q.endMessage(p, t, verbs.WCRecv)
	}
	return true
}

func (q *qp) placeUCWrite(p *packet, t opTraits) bool {
	if p.length > q.left || (t&opEnds != 0 && p.length != q.left) {
		return false
	}
	if t&opHasImm != 0 && !q.takeRecv() {
		return false
	}
	if q.left > 0 {
		dst, ok := q.nic.mrs.find(q.pd, q.rkey, q.va, q.left, verbs.AccessRemoteWrite)
		if !ok {
			return false
		}
		if q.nic.observe != nil && p.length > 0 {
			q.touch(TouchRemoteWrite, q.va, p.length)
		}
		for k := range p.numSegs {
			dst = dst[bulk.Copy(dst, p.segs[k]):]
		}
	}
	q.va += uint64(p.length)
	q.left -= p.length
	q.placed += p.length
	if t&opEnds != 0 {
		q.msgKind = 0
		if t&opHasImm != 0 {
			q.endMessage(p, t, verbs.WCRecvRDMAWithImm)
		}
	}
	return true
}

// receiveDatagram takes a UD packet: Q_Key, then a receive, then 40 bytes of GRH and
// the payload. What does not fit the QP or its receive is dropped without a word, and the
// receive serves the next; only a receive that is itself wrong ends the QP.
func (q *qp) receiveDatagram(p *packet) {
	t := traits[p.Opcode&roce.OperationMask]
	if t&opIsSend == 0 || t&opStarts == 0 || t&opEnds == 0 || q.dying {
		return
	}
	if p.QKey != q.attr.QKey {
		q.nic.stats.BadQKey++
		return
	}
	if q.state == verbs.StateRTR {
		q.established()
	}
	if !q.takeRecv() {
		q.dropMessage()
		return
	}
	putGRH(&q.nic.grh, p.path, p.length)
	sges := q.cur.sge[:q.cur.numSGE]
	s := q.scatterBytes(sges, 0, q.nic.grh[:])
	if s == verbs.StatusSuccess {
		s = q.scatter(sges, verbs.GRHLen, p)
	}
	switch s {
	case verbs.StatusSuccess:
	case verbs.StatusLocLenErr:
		q.dropMessage() // whoever knows the Q_Key could end the QP otherwise
		return
	default:
		q.failRecv(s)
		return
	}
	wc := q.completeRecv(verbs.StatusSuccess, p.Solicited)
	wc.Flags, wc.ByteLen, wc.SrcQPN, wc.SL = verbs.WCGRH, verbs.GRHLen+p.length, p.SrcQPN, p.path.attr.SL
	if t&opHasImm != 0 {
		wc.Flags |= verbs.WCWithImm
		wc.Imm = p.Imm
	}
}

// failRecv ends the receive at hand, and the QP, for a fault of this side. The QP itself
// is ended from the work list: it may be the sender too, and in the middle of it.
func (q *qp) failRecv(status verbs.Status) {
	q.completeRecv(status, true)
	q.dying = true
	q.core.failing.push(q)
}
