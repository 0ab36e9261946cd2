package softnic

import (
	"ibverbx/internal/roce"
	"ibverbx/internal/shm"
	"ibverbx/verbs"
)

// serveLine executes a line. It returns false if the entry is malformed.
func (r *shmRing) serveLine(payload []byte) bool {
	m := &r.entry
	b, ok := m.Decode(&r.header, payload)
	if !ok {
		return false
	}
	if q := r.neighbor.nic.qps.get(m.QPN); q == nil || !r.leadsTo(q) || !q.executeLine(m, b) {
		r.serveAsPacket(q, m, b)
	}
	return true
}

// executeLine executes a line, after the responder's checks for packets: the peer can write arbitrary
// bytes. It returns false in any unusual case, which the responder then handles as a packet.
func (q *qp) executeLine(m *shm.Line, b []byte) bool {
	n := q.nic
	if q.typ != verbs.RC || !receivable[q.state] || (q.state == verbs.StateRTR && !q.commEst) || !n.portUp || n.observe != nil ||
		roce.PSN(m.PSN) != q.epsn || q.msgKind != 0 || q.failingNAK || q.hasCur || q.srq != nil || q.sealing != nil ||
		q.rq.ring.Len() == 0 || q.recvCQ.full() || n.mrs.devices.Load() != nil {
		return false
	}
	w, op := q.rq.ring.Front().unlisted(), verbs.WCRecvRDMAWithImm
	switch {
	case w == nil:
		return false
	case m.Flags&shm.LineSend != 0:
		op = verbs.WCRecv
		if len(b) > 0 && (m.Length > q.seg || q.scatterBytes(w.sge[:w.numSGE], 0, b, asResponder) != verbs.StatusSuccess) {
			return false
		}
	case q.attr.Access&verbs.AccessRemoteWrite == 0 || m.Length > maxMsgSize:
		return false
	case m.Length > 0:
		if _, ok := n.mrs.get(m.Key).find(q.pd, m.Addr, m.Length, verbs.AccessRemoteWrite); !ok {
			return false
		}
	}
	wc := q.recvCQ.push(q.rq.used, 1, m.Flags&shm.LineSolicited != 0)
	wc.WRID, wc.Status, wc.Opcode, wc.QPN, wc.ByteLen = w.wrid, verbs.StatusSuccess, op, q.num, m.Length
	wc.Flags, wc.SL, wc.VendorErr, wc.Imm, wc.SrcQPN = 0, 0, 0, 0, 0
	if m.Flags&shm.LineImm != 0 {
		wc.Flags, wc.Imm = verbs.WCWithImm, m.Imm
	}
	q.rq.ring.Drop(1)
	q.filled()
	q.epsn, q.unackedPSNs = q.epsn.Add(1), 0
	q.msn++
	n.stats.PacketsReceived++
	q.updateCredit()
	return true
}

// serveAsPacket converts a line to a packet and passes it to the NIC. q is nil if the line's QPN is unknown.
func (r *shmRing) serveAsPacket(q *qp, m *shm.Line, b []byte) {
	p := &r.packet
	op := sendOpcodes[verbs.OpRDMAWriteWithImm]
	p.length, p.numSegs = m.Length, 0 // the bytes are in place
	if m.Flags&shm.LineSend != 0 {
		if op = sendOpcodes[verbs.OpSend]; m.Flags&shm.LineImm != 0 {
			op = sendOpcodes[verbs.OpSendWithImm]
		}
		p.setPayload(b)
	}
	p.Header = roce.Header{
		Opcode: roce.RC | op[1][1], DestQPN: m.QPN, PSN: roce.PSN(m.PSN), Imm: m.Imm, Solicited: m.Flags&shm.LineSolicited != 0,
		VA: m.Addr, RKey: m.Key, DMALen: m.Length, PKey: roce.PKeyDefault, Migrated: true,
	}
	p.path = &r.from
	if r.packets == nil && q != nil && r.neighbor.leadsTo(q) {
		q.from = p.path // regardless of the port announced by the peer
	}
	r.neighbor.nic.receive(p)
}
