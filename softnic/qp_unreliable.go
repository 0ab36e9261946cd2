package softnic

import (
	"encoding/binary"

	"ibverbx/internal/roce"
	"ibverbx/verbs"
)

// receiveUC handles a packet of a UC peer. UC does not respond: a message that has lost a packet
// or cannot be placed is dropped, and the next message starts afresh (IBTA 1.4 section 9.8.2.2).
func (q *qp) receiveUC(p *packet, op uint8) {
	t := traits[op]
	if t&(opIsSend|opIsWrite) == 0 || q.failingNAK {
		return
	}
	if t&opStarts != 0 {
		if q.msgKind != 0 {
			q.dropMessage() // the rest of the previous message was lost
		}
	} else if p.PSN != q.epsn || q.msgKind != t&(opIsSend|opIsWrite) {
		if q.msgKind != 0 {
			q.dropMessage()
		}
		q.epsn = p.PSN.Add(1)
		q.respondPace(p, t)
		return
	}
	q.epsn = p.PSN.Add(1)
	q.respondPace(p, t)
	if !q.wellFormed(p, t) {
		q.dropMessage()
		return
	}
	if t&opIsWrite != 0 && q.sealing == nil && q.pd.keyGuesses.blocked(q.core) {
		q.nic.stats.WritesBlocked++
		q.dropMessage()
		return
	}
	switch q.place(p, t) {
	case placed:
	case placeBadRecv:
		q.failRecv(verbs.StatusLocProtErr)
	case placeFailed:
		if !q.hasCur {
			q.dropMessage() // a WRITE
			return
		}
		q.failRecv(verbs.StatusGeneralErr)
	case placeNoAccess:
		q.wrongKey()
		q.dropMessage()
	default:
		q.dropMessage()
	}
}

// dropMessage drops the current message. Its receive, if any, is used for the next message.
func (q *qp) dropMessage() {
	q.nic.stats.MessagesDropped++
	q.msgKind = 0
}

// receiveDatagram handles a UD packet: it checks the Q_Key, and stores 40 bytes of GRH and the
// payload in a receive. A packet that does not fit the QP or its receive is dropped silently, and
// the receive is kept for the next one. Only a receive with invalid memory or a failed device
// fails the QP.
func (q *qp) receiveDatagram(p *packet) {
	t := traits[p.Opcode&roce.OperationMask]
	if t&opIsSend == 0 || t&opStarts == 0 || t&opEnds == 0 || q.failingNAK {
		return
	}
	if p.QKey != q.attr.QKey {
		q.nic.stats.BadQKey++
		return
	}
	if q.state == verbs.StateRTR {
		q.established()
	}
	q.respondDatagram(p)
	if !q.claimRecv() {
		q.dropMessage()
		return
	}
	if q.nic.portGIDs() {
		from := p.path.shown(q.nic)
		putGRH(&q.nic.stage.placed, &from, p.length)
	} else {
		putGRH(&q.nic.stage.placed, p.path, p.length)
	}
	sges := q.recvSGEs()
	s := q.scatterBytes(sges, 0, q.nic.stage.placed[:], asResponder)
	if s == verbs.StatusSuccess {
		s = q.scatter(sges, verbs.GRHLen, p, asResponder)
	}
	switch s {
	case verbs.StatusSuccess:
	case verbs.StatusLocLenErr:
		q.dropMessage() // otherwise any sender with the Q_Key could fail the QP
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
	if p.assoc != nil {
		wc.Flags |= verbs.WCSealed
		wc.Seal = p.assoc.of.greeting.Number()
	}
}

// failRecv fails the current receive and the QP with a local error. The work list fails the QP,
// because it may also be the sender, in the middle of sending.
func (q *qp) failRecv(status verbs.Status) {
	q.completeRecv(status, true)
	q.failingNAK = true
	q.core.lists.failing.push(q)
}

// putGRH writes the 40 bytes before the payload of a UD receive: a GRH, or over IPv4 an IPv4
// header in the second half (RoCE v2, annex A17.4.5.2).
func putGRH(b *[verbs.GRHLen]byte, p *path, payload uint32) {
	clear(b[:])
	hop := p.attr.HopLimit
	if p.dgid.Addr().Is4() {
		const headers = 20 + 8 + 12 + 8 + 4 // IP, UDP, BTH, DETH, ICRC
		h := b[20:]
		h[0] = 0x45
		h[1] = p.attr.TrafficClass
		binary.BigEndian.PutUint16(h[2:], uint16(headers+payload))
		binary.BigEndian.PutUint16(h[6:], 0x4000) // DF
		h[8] = hop
		h[9] = 17 // UDP
		copy(h[12:16], p.sgid[12:])
		copy(h[16:20], p.dgid[12:])
		binary.BigEndian.PutUint16(h[10:], ipChecksum(h))
		return
	}
	const headers = 8 + 12 + 8 + 4 // UDP, BTH, DETH, ICRC
	binary.BigEndian.PutUint32(b[0:], 6<<28|uint32(p.attr.TrafficClass)<<20|p.attr.FlowLabel&0xfffff)
	binary.BigEndian.PutUint16(b[4:], uint16(headers+payload))
	b[6] = 17
	b[7] = hop
	copy(b[8:24], p.sgid[:])
	copy(b[24:40], p.dgid[:])
}

// ipChecksum returns the checksum of a 20-byte IPv4 header whose checksum field is zero.
func ipChecksum(h []byte) uint16 {
	var sum uint32
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(h[i:]))
	}
	sum = sum&0xffff + sum>>16
	sum = sum&0xffff + sum>>16
	return ^uint16(sum)
}
