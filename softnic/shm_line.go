package softnic

import (
	"ibverbx/internal/ntcopy"
	"ibverbx/internal/shm"
	"ibverbx/verbs"
)

// A line (shm.Line) carries a SEND of up to one packet, or the notification of a WRITE executed by the
// sender. It is never acknowledged: the request completes once its line is in the ring, and cannot fail
// afterwards. Under the peer's grant, the sender has applied the responder's checks, and a credit
// guarantees the receive. Before the peer changes any state that a line depends on, it revokes the
// grant and serves the ring (revoke).
//
// A line uses one PSN, like a packet, and is sent only once all packets of its QP are acknowledged. So
// the peer serves both in posting order.

// shmLine marks an entry as a line, in the same byte as shmPlaced.
const shmLine = 2

// permit describes the direct requests granted by the peer of a QP.
type permit struct {
	access verbs.Access
	domain uint32
	// posted and shortest are the peer's credit: see shm.CreditWord.
	posted, shortest uint32
}

// readPermit reads the grant and the credit of q. neighbor.epoch must be odd.
func (b *neighbor) readPermit(q *qp) (p permit) {
	to := q.attr.DestQPN
	g, ok := shm.GrantOf(b.peers.Grant(to).Load(), q.attr.SQPSN+q.num, to)
	if !ok {
		return p
	}
	if g.Read {
		p.access = verbs.AccessRemoteRead
	}
	if g.Write {
		p.access |= verbs.AccessRemoteWrite
	}
	p.domain = g.Domain
	if b.ring != nil {
		p.posted, p.shortest = shm.CreditOf(b.peers.Credit(to).Load())
	}
	return p
}

// hasCredit reports whether the peer has posted a receive for the next request of q.
func (p *permit) hasCredit(q *qp) bool { return p.usesCredits() && int32(p.posted-q.spent) > 0 }

// usesCredits reports whether the peer uses credits.
func (p *permit) usesCredits() bool { return p.posted|p.shortest != 0 }

// runFlags are the flags that run supports. A fence has no effect while no request is outstanding.
const runFlags = plainFlags | verbs.SendInline

// run executes requests of q in order, bypassing packets and the send queue, until one requires them:
// an invalid request, unmapped memory, a missing credit, a full ring or CQ, or more than directQuantum
// bytes. It returns the number executed, and ErrQueueFull if the send queue is full. The caller holds
// the core's lock.
//
// Latency of 8 bytes between two processes, through the queue and with run (the best 64 consecutive
// operations of BenchmarkShmWrite and BenchmarkShmPost, two busy virtual CPUs, Cascade Lake):
//
//   - notified WRITE, half a round trip: 562 and 298 ns;
//   - WRITE polled after each post: 239 and 114 ns;
//   - 16 WRITEs per post: 89 and 29 ns each.
func (r *shmRing) run(q *qp, wrs []verbs.SendWR) (n int, err error) {
	b := r.neighbor
	if !q.readyToRun() || b.gone.Load() {
		return 0, nil
	}
	if free := q.sqUsed.room(q.maxSend, len(wrs)); len(wrs) > free {
		wrs, err = wrs[:free], verbs.ErrQueueFull
	}
	b.epoch.Add(1)
	p := b.readPermit(q)
	for left := uint32(directQuantum); n < len(wrs); n++ {
		length, ok := r.execute(q, &wrs[n], &p, left)
		if !ok {
			err = nil // the queue decides
			break
		}
		left -= length
	}
	b.endAccess()
	q.sqUsed.taken += uint32(n)
	if r.packets != nil {
		r.packets.ringBell()
	}
	return n, err
}

// readyToRun reports whether q is ready to send, without outstanding requests and without an observer.
func (q *qp) readyToRun() bool {
	n := q.nic
	return q.typ == verbs.RC && q.state == verbs.StateRTS && q.sqHead == q.sqTail && q.una == q.snd && q.snd == q.maxPSN &&
		q.lists&^(onAcks|onWaiting) == 0 && q.injected == nil && n.observe == nil && n.portUp && n.mrs.devices.Load() == nil
}

// execute executes a request of up to left bytes and completes it. It returns false, without effect, if
// it cannot.
func (r *shmRing) execute(q *qp, wr *verbs.SendWR, p *permit, left uint32) (length uint32, ok bool) {
	signaled := wr.Flags&verbs.SendSignaled != 0 || q.signalAll
	if wr.Opcode > verbs.OpSendWithImm || wr.NumSGE > q.sge.own || wr.Flags&^runFlags != 0 || signaled && q.sendCQ.full() {
		return 0, false
	}
	var first []byte
	var rest [][]byte
	if s := &wr.SGE[0]; wr.NumSGE == 1 && wr.Flags&verbs.SendInline == 0 {
		length = s.Length
		first, ok = q.nic.mrs.get(s.LKey).find(q.pd, s.Addr, length, 0)
	} else {
		first, rest, length, ok = r.gatherPosted(q, wr)
	}
	switch {
	case !ok || length > left:
		return 0, false
	case wr.Opcode != verbs.OpRDMAWrite && !r.mayNotify(q, p):
		return 0, false
	case wr.Opcode >= verbs.OpSend:
		if length > q.seg || length > p.shortest {
			return 0, false
		}
	case p.access&verbs.AccessRemoteWrite == 0:
		return 0, false
	case length > 0:
		to := r.neighbor.regionFor(p.domain, wr.RKey, wr.RemoteAddr, length, verbs.AccessRemoteWrite)
		if to == nil || to.bytes == nil {
			return 0, false
		}
		fill(to.bytes[wr.RemoteAddr-to.addr:], first, rest)
		q.nic.stats.Direct++
	case wr.Opcode == verbs.OpRDMAWrite: // the peer must handle an empty WRITE, whose key is not checked
		return 0, false
	}
	if wr.Opcode != verbs.OpRDMAWrite {
		r.publishLine(q, wr.Opcode, wr.Flags, wr.Imm, length, wr.RKey, wr.RemoteAddr, first, rest)
	}
	if q.withoutCQE++; signaled {
		wc := q.sendCQ.push(q.sqUsed, q.withoutCQE, false)
		q.withoutCQE = 0
		wc.WRID, wc.Status, wc.Opcode, wc.QPN, wc.ByteLen = wr.WRID, verbs.StatusSuccess, wr.Opcode.WC(), q.num, length
		wc.Flags, wc.SL, wc.VendorErr, wc.Imm, wc.SrcQPN = 0, 0, 0, 0, 0
	}
	return length, true
}

// gatherPosted returns the bytes of a request with INLINE data or a number of SGEs other than one. They are
// valid until the next call.
func (r *shmRing) gatherPosted(q *qp, wr *verbs.SendWR) (first []byte, rest [][]byte, length uint32, ok bool) {
	inline, total := wr.Flags&verbs.SendInline != 0, uint64(0)
	parts := r.parts[:0]
	for k := range wr.SGE[:wr.NumSGE] {
		s := &wr.SGE[k]
		if s.Length == 0 {
			continue
		}
		var b []byte
		if inline {
			b = bytesAt(s.Addr, s.Length)
		} else if b, ok = q.nic.mrs.get(s.LKey).find(q.pd, s.Addr, s.Length, 0); !ok {
			return nil, nil, 0, false
		}
		parts, total = append(parts, b), total+uint64(s.Length)
	}
	if total > directQuantum || inline && total > uint64(q.maxInline) {
		return nil, nil, 0, false
	}
	if len(parts) == 0 {
		return nil, nil, 0, true
	}
	return parts[0], parts[1:], uint32(total), true
}

// fill copies first and rest to dst.
func fill(dst, first []byte, rest [][]byte) {
	n := ntcopy.Copy(dst, first)
	for _, b := range rest {
		n += ntcopy.Copy(dst[n:], b)
	}
}

// waitsForPeer reports whether a request of q waits for a free slot in the ring. A stopped peer never
// frees one, and lines are not acknowledged, so no other timer may detect its silence.
func (q *qp) waitsForPeer() bool {
	return q.lists&onWaiting != 0 && q.core.traits.shm != nil && q.sqNext != q.sqTail
}

// ringTimeout handles the timer of a QP that waits for a free slot. A peer that has served entries since
// then is alive.
func (q *qp) ringTimeout(now int64) {
	if q.core.traits.shm.peer.peers.Taken().Load() != q.peerServed {
		q.retryLeft = q.attr.RetryCount
		q.armTimer(now)
		return
	}
	if !q.lateOnce && now-q.timerAt > int64(lateTimer) {
		q.armTimer(now)
		q.lateOnce = true
		return
	}
	q.nic.stats.Timeouts++
	q.trouble.Timeouts++
	if q.retryLeft == 0 {
		q.failSend(verbs.StatusRetryExcErr)
		return
	}
	q.retryLeft--
	q.armTimer(now)
}

// unplacedSend reports whether the ring may still contain a SEND line with unplaced bytes.
func (r *shmRing) unplacedSend() bool {
	n := r.writer.Written()
	return n-r.sends < n-r.neighbor.peers.Taken().Load()
}

// mayNotify reports whether q has a credit and the ring has a free slot.
func (r *shmRing) mayNotify(q *qp, p *permit) bool {
	if !p.hasCredit(q) { // the peer may have posted receives since
		*p = r.neighbor.readPermit(q)
	}
	return p.hasCredit(q) && r.free()
}

// publishLine publishes the line of a request, with the payload of a SEND. The caller has checked the credit
// and the ring.
func (r *shmRing) publishLine(q *qp, op verbs.Opcode, flags verbs.SendFlags, imm, length, key uint32, addr uint64, first []byte, rest [][]byte) {
	m := shm.Line{QPN: q.attr.DestQPN, PSN: uint32(q.snd), Imm: imm, Length: length, Key: key, Addr: addr}
	if op != verbs.OpSend {
		m.Flags = shm.LineImm
	}
	if op >= verbs.OpSend {
		m.Flags |= shm.LineSend
	}
	if flags&verbs.SendSolicited != 0 {
		m.Flags |= shm.LineSolicited
	}
	header, payload := r.writer.Begin(m.Payload())
	if inside := m.Encode(header); inside != nil {
		payload = inside
	}
	if op >= verbs.OpSend {
		fill(payload, first, rest)
	}
	header[shm.Header-1] = shmLine
	r.writer.Publish()
	if op >= verbs.OpSend {
		r.sends = r.writer.Written()
	}
	r.dirty = true
	r.announce()
	q.nic.stats.PacketsSent++
	q.spent++
	q.snd = q.snd.Add(1)
	q.una, q.maxPSN = q.snd, q.snd
}

// sendLine sends request sqNext, a SEND or an empty WRITE_WITH_IMM, as a line. The request waits for the
// ACKs of earlier packets and for a free slot. Without a credit it becomes a packet, and later requests
// wait for the ACK; otherwise a busy QP would never return to lines. Over UDP only consecutive requests
// wait: see waitOrPackets.
func (b *neighbor) sendLine(q *qp, w *sendWQE, p *permit, missed uint32) directResult {
	r, n := b.ring, q.nic
	switch {
	case r == nil || !p.usesCredits() || n.mrs.devices.Load() != nil:
		return directPackets
	case w.opcode >= verbs.OpSend && (w.length > q.seg || w.length > p.shortest),
		w.opcode < verbs.OpSend && p.access&verbs.AccessRemoteWrite == 0:
		return directPackets
	}
	if t := b.finishBatch(q); t != directDone {
		return t
	}
	switch {
	case q.sqHead != q.sqNext:
		return b.waitOrPackets(q, max(w.length, lineWaitBytes), missed, r.packets != nil)
	case !p.hasCredit(q):
		return directPackets
	case !r.room(q) || b.gone.Load(): // room also returns true if the peer has exited
		if r.packets == nil {
			return directPackets
		}
		return directWait
	}
	s := &n.scratch
	if !q.gather(w, 0, w.length, s) {
		return directWait // the request has failed
	}
	r.publishQueued(q, w, s)
	return directDone
}

// publishQueued is publishLine for a queued request. p holds the payload of a SEND.
func (r *shmRing) publishQueued(q *qp, w *sendWQE, p *packet) {
	var first []byte
	var rest [][]byte
	if w.opcode >= verbs.OpSend && p.numSegs > 0 {
		first, rest = p.segs[0], p.segs[1:p.numSegs]
	}
	r.publishLine(q, w.opcode, w.flags, w.imm, w.length, w.rkey, w.remoteAddr, first, rest)
	q.retryLeft = q.attr.RetryCount // progress, as an acknowledgement
}
