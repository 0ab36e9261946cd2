package softnic

import (
	"ibverbx/internal/ntcopy"
	"ibverbx/verbs"
)

// placeResult is the outcome of placing the payload of a SEND or WRITE packet. On an outcome
// other than placed, RC sends a NAK and UC drops the message.
type placeResult uint8

const (
	placed        placeResult = iota
	placeNoRecv               // no receive is posted
	placeInvalid              // the QP does not allow the operation, or the length is wrong
	placeNoAccess             // invalid key, range or access right
	placeTooLong              // the message is longer than its receive
	placeBadRecv              // an SGE of the receive is not writable memory of the PD
	placeFailed               // the device cannot copy its memory
)

// wellFormed checks that a packet continues the current message, and has the length required by
// its position in the message (IBTA 1.4 sections 9.7.4.1.1 to 9.7.4.1.4).
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
	return p.length <= q.seg || p.numSegs == 0 // a payload already in place may have any length
}

// place stores the payload of a SEND or WRITE, and completes the receive at the end of the
// message.
func (q *qp) place(p *packet, t opTraits) placeResult {
	if t&opIsWrite != 0 {
		return q.placeWrite(p, t)
	}
	return q.placeSend(p, t)
}

// placeSend stores the payload of a SEND in the message's receive.
func (q *qp) placeSend(p *packet, t opTraits) placeResult {
	if t&opStarts != 0 {
		if !q.claimRecv() {
			return placeNoRecv
		}
		q.msgKind, q.placed = opIsSend, 0
	}
	s := verbs.StatusLocLenErr
	if q.placed+p.length <= maxMsgSize {
		s = q.scatter(q.recvSGEs(), q.placed, p, asResponder)
	}
	switch s {
	case verbs.StatusSuccess:
	case verbs.StatusLocLenErr:
		return placeTooLong
	case verbs.StatusGeneralErr:
		return placeFailed
	default:
		return placeBadRecv
	}
	q.placed += p.length
	if t&opEnds != 0 {
		q.endMessage(p, t, verbs.WCRecv)
	}
	return placed
}

// placeWrite stores the payload of a WRITE at the address in its RETH.
func (q *qp) placeWrite(p *packet, t opTraits) placeResult {
	va, rkey, left, done := q.va, q.rkey, q.left, q.placed
	if t&opStarts != 0 {
		va, rkey, left, done = p.VA, p.RKey, p.DMALen, 0
		if q.attr.Access&verbs.AccessRemoteWrite == 0 {
			// An operation disabled on the receive queue is an invalid request. Only a denial
			// by the region is an access error (IBTA 1.4 section 11.6.2).
			return placeInvalid
		}
	}
	if p.length > left || (t&opEnds != 0 && p.length != left) || left > maxMsgSize {
		return placeInvalid
	}
	var dst []byte
	m, to := q.nic.mrs.get(rkey), uint64(0)
	if left > 0 {
		// The region must contain the whole remainder, not only this packet. An empty WRITE
		// does not check its key (IBTA 1.4 section 9.4.3.1.1).
		var ok bool
		if dst, ok = m.find(q.pd, va, left, verbs.AccessRemoteWrite); !ok {
			if to, ok = m.onDevice(q.pd, va, left, verbs.AccessRemoteWrite); !ok {
				return placeNoAccess
			}
		}
	}
	if t&opHasImm != 0 && !q.claimRecv() {
		return placeNoRecv
	}
	if q.nic.observe != nil && p.length > 0 {
		q.touch(AccessRemoteWrite, va, p.length)
	}
	if to != 0 {
		for k := range p.numSegs {
			if q.land(m, to, p.segs[k], asResponder) != verbs.StatusSuccess {
				return placeFailed
			}
			to += uint64(len(p.segs[k]))
		}
	} else {
		for k := range p.numSegs {
			dst = dst[ntcopy.Copy(dst, p.segs[k]):]
		}
	}
	done += p.length
	if t&opEnds != 0 {
		q.msgKind, q.placed = 0, done
		if t&opHasImm != 0 {
			q.endMessage(p, t, verbs.WCRecvRDMAWithImm)
		}
		return placed
	}
	q.msgKind = opIsWrite
	q.va, q.rkey, q.left, q.placed = va+uint64(p.length), rkey, left-p.length, done
	return placed
}

// endMessage completes the receive of a fully placed message.
func (q *qp) endMessage(p *packet, t opTraits, op verbs.WCOpcode) {
	q.msgKind = 0
	wc := q.completeRecv(verbs.StatusSuccess, p.Solicited)
	wc.Opcode, wc.ByteLen = op, q.placed
	if t&opHasImm != 0 {
		wc.Flags, wc.Imm = verbs.WCWithImm, p.Imm
	}
}

// scatter stores the payload of p in the SGEs, starting at offset off.
func (q *qp) scatter(sges []verbs.SGE, off uint32, p *packet, whose role) verbs.Status {
	for k := range p.numSegs {
		if s := q.scatterBytes(sges, off, p.segs[k], whose); s != verbs.StatusSuccess {
			return s
		}
		off += uint32(len(p.segs[k]))
	}
	return verbs.StatusSuccess
}

// scatterBytes stores b in the SGEs, starting at offset off. It never writes beyond them, or to
// memory without local write access.
func (q *qp) scatterBytes(sges []verbs.SGE, off uint32, b []byte, whose role) verbs.Status {
	for part := verbs.PartOf(sges, off, uint32(len(b))); part.Next(); {
		s := &part.SGE
		dst, ok := q.nic.mrs.get(s.LKey).find(q.pd, s.Addr, s.Length, verbs.AccessLocalWrite)
		if !ok {
			if status := q.store(s.LKey, s.Addr, b[:s.Length], whose); status != verbs.StatusSuccess {
				return status
			}
		}
		if q.nic.observe != nil {
			q.touch(AccessScatter, s.Addr, s.Length)
		}
		ntcopy.Copy(dst, b[:s.Length])
		b = b[s.Length:]
	}
	if len(b) > 0 {
		return verbs.StatusLocLenErr
	}
	return verbs.StatusSuccess
}
