package softnic

import (
	"ibverbx/internal/ntcopy"
	"ibverbx/internal/roce"
	"ibverbx/verbs"
)

// transmit sends everything that the QP can send now: responses first, then its own requests. Only the
// work list calls it, so calls never nest.
func (q *qp) transmit() {
	if q.failing {
		return
	}
	switch q.state {
	case verbs.StateRTR, verbs.StateRTS, verbs.StateSQD:
	case verbs.StateSQE:
		q.flushSends()
	case verbs.StateErr:
		q.flushSends()
		return
	case verbs.StateReset, verbs.StateInit:
		return
	}
	if q.responses.Len() > 0 && !q.respond() {
		return
	}
	if q.state != verbs.StateRTS && q.state != verbs.StateSQD {
		return
	}
	if q.typ != verbs.RC {
		for q.sqHead != q.sqNext { // requeued
			q.completeSend(q.wqe(q.sqHead), verbs.StatusSuccess)
		}
	}
	if q.typ == verbs.UD {
		q.sendDatagrams()
	} else {
		q.sendMessages()
		q.charge()
		if q.failing {
			return
		}
	}
	if (q.una != q.snd || q.waitsForPeer()) && q.timerIdx < 0 {
		q.core.lists.watch.push(q)
	}
	if q.prefetch != nil {
		q.trimPrefetch()
	}
	if q.state == verbs.StateSQD {
		q.checkDrained()
	}
}

// sendMessages sends packets until the QP must wait.
func (q *qp) sendMessages() {
	for q.sqNext != q.sqTail && !q.rnrWait {
		w := q.wqe(q.sqNext)
		if b := q.path.neighbor; b != nil {
			if t := b.direct(q); t == directDone {
				continue
			} else if t == directWait {
				return
			}
		}
		if q.sqOff == 0 && !q.mayStart(w) {
			return
		}
		if !q.hasRoom(w) {
			return
		}
		if w.isRequest() {
			if !q.sendRequest(w) {
				return
			}
		} else if !q.sendData(w) {
			return
		}
	}
}

// room reports whether the link accepts another packet of the NIC. Otherwise the QP is scheduled
// once the link does.
func (q *qp) room() bool {
	if s := q.core.traits.shm; s != nil {
		return s.room(q)
	}
	l := q.core.queue
	return l == nil || l.room(q)
}

// hasRoom reports whether the windows permit the next packet of w.
func (q *qp) hasRoom(w *sendWQE) bool {
	f, window, full := q.inFlight(), q.window, w.length-q.sqOff >= q.seg
	if full {
		window = q.longWindow
	}
	return f < window && (q.nic.budget.limit == 0 || q.mayAdd(f, full)) && q.room()
}

// emit sends a packet.
func (q *qp) emit(p *packet) {
	q.nic.stats.PacketsSent++
	q.core.link.send(q.nic, p)
}

// mayStart reports whether request next can start. It assigns PSNs on the first start.
func (q *qp) mayStart(w *sendWQE) bool {
	if q.state != verbs.StateRTS && q.sqNext == q.sqMax && q.path.movedBytes == 0 {
		return false // SQD starts no requests
	}
	if w.flags&verbs.SendFence != 0 && (q.reads > 0 || q.landings.oldest(asRequester) != nil) {
		return false
	}
	if w.isRequest() && q.reads >= q.attr.MaxRdAtomic {
		if q.attr.MaxRdAtomic == 0 {
			q.failLocal(verbs.StatusLocQPOpErr)
		}
		return false
	}
	if q.sqNext == q.sqMax {
		if w.opcode != verbs.OpRDMAWrite && !w.isRequest() {
			q.spent++
		}
		q.path.movedBytes = 0
		w.first = q.snd
		w.last = q.snd
		if w.length > q.seg && w.opcode < verbs.OpAtomicCmpAndSwp && !w.placed {
			w.last = q.snd.Add((w.length - 1) / q.seg)
		}
		q.sqMax++
	}
	return true
}

// sendData sends one packet of a SEND or WRITE.
func (q *qp) sendData(w *sendWQE) bool {
	n := q.nic
	p := &n.scratch
	off, length := q.sqOff, w.length
	size := min(length-off, q.seg)
	if w.placed {
		size, p.length, p.numSegs = length, length, 0
	} else if !q.gather(w, off, size, p) {
		return false
	}
	last := off+size == length
	op := sendOpcodes[w.opcode&3][index(off == 0)][index(last)]
	psn := q.snd
	p.path, p.Opcode, p.DestQPN, p.PSN = q.path, q.transport|op, q.attr.DestQPN, psn
	p.VA, p.RKey, p.DMALen, p.Imm = w.remoteAddr, w.rkey, length, w.imm
	if q.paced {
		p.AckReq = q.requestsPace(psn) || q.holder(q.inFlight()+1, size == q.seg) != nil
	} else {
		p.AckReq = last || (psn-w.first)&q.ackMask == q.ackMask || q.probing || (n.budget.limit > 0 && q.holder(q.inFlight()+1, size == q.seg) != nil)
	}
	p.Solicited = last && w.flags&verbs.SendSolicited != 0
	if last {
		q.sqOff = 0
		q.sqNext++
	} else {
		q.sqOff = off + size
	}
	if p.AckReq && q.timed && psn == q.maxPSN {
		q.measure(psn)
	}
	q.advance(psn.Add(1))
	q.emit(p)
	if q.typ == verbs.UC {
		if !q.paced {
			q.una = q.snd
		}
		if last {
			q.completeSend(w, verbs.StatusSuccess)
		}
	}
	return true
}

// advance sets the next PSN to send, after a packet.
func (q *qp) advance(psn roce.PSN) {
	q.snd = psn
	if q.maxPSN.Sub(psn) < 0 {
		q.maxPSN = psn
	} else {
		q.countRetransmit()
	}
}

// countRetransmit counts a retransmitted packet.
func (q *qp) countRetransmit() {
	q.nic.stats.Retransmits++
	q.trouble.Retransmits++
}

// sendRequest sends a READ or an atomic. A partially answered READ requests only the rest. On a link
// with a limit per request, it requests the next part.
func (q *qp) sendRequest(w *sendWQE) bool {
	off, end, last := q.sqOff, w.length, w.last
	if part := q.core.traits.readAhead * q.seg; part > 0 && w.opcode == verbs.OpRDMARead {
		if q.reads >= q.attr.MaxRdAtomic {
			return false
		}
		if next := (off/part + 1) * part; next < end {
			end, last = next, w.first.Add(next/q.seg-1)
		}
	}
	if f := q.inFlight(); q.loss.limit > 0 && f > 0 && !q.probing && f+uint32(last.Sub(q.snd)) >= q.loss.limit {
		return false // the limit must cover the whole response
	}
	if !q.writable() {
		q.failLocal(verbs.StatusLocProtErr)
		return false
	}
	p := &q.nic.scratch
	p.noPayload()
	p.path, p.DestQPN, p.PSN = q.path, q.attr.DestQPN, q.snd
	p.VA, p.RKey = w.remoteAddr+uint64(off), w.rkey
	p.AckReq, p.Solicited = true, false
	switch w.opcode {
	case verbs.OpRDMARead:
		p.Opcode, p.DMALen = roce.RC|roce.OpReadRequest, end-off
	case verbs.OpAtomicCmpAndSwp:
		p.Opcode, p.Compare, p.SwapAdd = roce.RC|roce.OpCompareSwap, w.arg0, w.arg1
	default:
		p.Opcode, p.Compare, p.SwapAdd = roce.RC|roce.OpFetchAdd, 0, w.arg0
	}
	if q.sqOff = end; end == w.length {
		q.sqOff = 0
		q.sqNext++
	}
	q.reads++
	if q.timed && q.snd == q.maxPSN {
		q.measure(q.snd)
	}
	q.advance(last.Add(1))
	q.emit(p)
	return true
}

// gather makes n bytes of request next, at offset off, the payload of p. It fails the request and
// returns false if an SGE is not within a region of the PD. It also returns false while device data is
// being fetched.
func (q *qp) gather(w *sendWQE, off, n uint32, p *packet) bool {
	if n == 0 {
		p.noPayload()
		return true
	}
	if w.flags&verbs.SendInline != 0 {
		p.setPayload(q.inlineOf(q.sqNext)[off:][:n])
		return true
	}
	var copied []byte // lists are copied, because a packet can reference only a few ranges
	sges := q.sges(q.sqNext)
	if p.length, p.numSegs, p.registered = n, 0, true; len(sges) > verbs.MaxSGE {
		copied = q.nic.stage.room(n)
		p.setPayload(copied)
	}
	at := uint32(0)
	for part := verbs.PartOf(sges, off, n); part.Next(); at += part.SGE.Length {
		s := part.SGE
		b, ok := q.nic.mrs.get(s.LKey).find(q.pd, s.Addr, s.Length, 0)
		if !ok {
			if b = q.prefetched(s, off, at, n); b == nil {
				return false
			}
			p.registered = false
		}
		if q.nic.observe != nil {
			q.touch(AccessGather, s.Addr, s.Length)
		}
		if copied != nil {
			ntcopy.Copy(copied[at:], b)
		} else {
			p.segs[p.numSegs] = b
			p.numSegs++
		}
	}
	return true
}

// writable reports whether the SGEs of request next are valid for a response.
func (q *qp) writable() bool {
	for _, s := range q.sges(q.sqNext) {
		if s.Length == 0 {
			continue
		}
		if !q.nic.mrs.get(s.LKey).holds(q.pd, s.Addr, s.Length, verbs.AccessLocalWrite) {
			return false
		}
	}
	return true
}

// sendDatagrams sends UD messages. Each is one packet and completes once sent.
func (q *qp) sendDatagrams() {
	p := &q.nic.scratch
	for q.sqNext != q.sqTail && q.state == verbs.StateRTS && q.mayPace() && q.room() {
		w := q.wqe(q.sqNext)
		a := q.nic.ahs.get(uint32(w.arg0))
		if a == nil || !q.sealing.sends(a.path) {
			q.failLocal(verbs.StatusLocQPOpErr)
			return
		}
		if !q.gather(w, 0, w.length, p) {
			return
		}
		op := sendOpcodes[w.opcode&3][1][1]
		p.path, p.Opcode, p.DestQPN, p.PSN = a.path, roce.UD|op, uint32(w.arg1>>32), q.snd
		p.QKey, p.SrcQPN, p.Imm = uint32(w.arg1), q.num, w.imm
		if p.QKey>>31 != 0 {
			p.QKey = q.attr.QKey // the QP's Q_Key replaces a controlled one (IBTA 1.4 section 10.2.5)
		}
		p.AckReq, p.Solicited = q.paced && q.requestsPace(q.snd), w.flags&verbs.SendSolicited != 0
		q.sqNext++
		q.sqMax++
		q.snd = q.snd.Add(1)
		if !q.paced {
			q.una = q.snd
		}
		q.emit(p)
		q.completeSend(w, verbs.StatusSuccess)
	}
}

// failLocal fails request next with a local error, once all earlier requests have completed. Until then
// transmit calls it again.
func (q *qp) failLocal(status verbs.Status) {
	if q.sqNext == q.sqHead {
		q.failSend(status)
	}
}
