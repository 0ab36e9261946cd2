package softnic

import (
	"encoding/binary"

	"ibverbx/internal/bulk"
	"ibverbx/internal/roce"
	"ibverbx/verbs"
)

// plainFlags are the flags of a WRITE that run does itself. A fence holds nothing back: nothing is under
// way.
const plainFlags = verbs.SendSignaled | verbs.SendSolicited | verbs.SendFence

// run does requests of q in order, without packets and without the send queue, until one is not plain: an
// error, a missing receive, a CQ without room. The packets do that one. run returns how many it has done,
// and ErrQueueFull if the queue has no room for the next. The caller is inside the gate of the pair, or
// holds the core's lock and the pair is idle. The pair is idle afterwards, unless its gate is shut: see
// handBack.
func (p *pair) run(q *qp, wrs []verbs.SendWR) (n int, err error) {
	if free := q.sqUsed.room(q.maxSend, len(wrs)); len(wrs) > free {
		wrs, err = wrs[:free], verbs.ErrQueueFull
	}
	for more := true; more; {
		k := p.burst(q, wrs[n:])
		n += k
		more = k > 0 && n < len(wrs) && q.sqHead == q.sqTail
	}
	if n < len(wrs) {
		err = nil // the packets do the next
	}
	return n, err
}

// burst is run without the limit of the queue. It ends early after maxRdAtomic atomics: handBack needs
// their results.
func (p *pair) burst(q *qp, wrs []verbs.SendWR) (n int) {
	peer := p.other(q)
	if q.typ == verbs.UC && peer.pd.guesses.wrong >= maxGuesses {
		return 0 // the packets find out whether WRITEs are still blocked
	}
	writes := peer.attr.Access&verbs.AccessRemoteWrite != 0
	reads, atomics, signaled := 0, 0, 0
	in := inbox{cq: peer.recvCQ}
	for ; n < len(wrs) && atomics < maxRdAtomic; n++ {
		wr := &wrs[n]
		s := &wr.SGE[0]
		if wr.Opcode <= verbs.OpRDMAWriteWithImm && wr.NumSGE == 1 && wr.Flags&^plainFlags == 0 && s.Length-1 < maxMsgSize && writes {
			src, ok := q.nic.mrs.get(s.LKey).find(q.pd, s.Addr, s.Length, 0)
			if !ok {
				break
			}
			dst, ok := peer.nic.mrs.get(wr.RKey).find(peer.pd, wr.RemoteAddr, s.Length, verbs.AccessRemoteWrite)
			if !ok {
				break
			}
			in.leaveFor(s.Length)
			var recv *recvWQE
			if wr.Opcode == verbs.OpRDMAWriteWithImm {
				if recv = peer.nextRecv(); recv == nil {
					break
				}
			}
			bulk.Copy(dst, src)
			if recv != nil && in.complete(peer, wr, recv.wrid, s.Length) == nil {
				break
			}
		} else if wr.Opcode >= verbs.OpAtomicCmpAndSwp {
			if !q.atomicPlain(peer, wr, q.snd.Add(uint32(n))) {
				break
			}
			atomics++
		} else if !q.perform(peer, wr, &in) {
			break
		} else if wr.Opcode == verbs.OpRDMARead {
			reads++
		}
		signaled |= int(wr.Flags & verbs.SendSignaled)
	}
	in.leave()
	if n == 0 {
		n, reads, signaled = p.runDevice(q, wrs)
	}
	if n > 0 {
		reads += atomics
		t := &p.traffic[index(p.qps[1] == q)]
		t.requests += uint64(n)
		if q.typ == verbs.RC {
			t.answers += uint64(reads + index(n > reads)) // one acknowledgement covers the others
		}
		q.sqUsed.taken += uint32(n)
		q.snd = q.snd.Add(uint32(n))
		q.una, q.maxPSN, peer.epsn, peer.asked = q.snd, q.snd, q.snd, 0
		q.retryLeft, q.rnrLeft = q.attr.RetryCount, q.attr.RNRRetry
		peer.msn += uint32(n)
		peer.filled()
		if signaled != 0 || q.signalAll {
			q.reportPlain(wrs[:n])
		} else {
			q.unreported += uint32(n)
		}
	}
	return n
}

// perform does one plain request of any kind: it moves the bytes and completes the peer's receive. It
// reports false if the request is not plain. Then nothing but bytes has changed, which the packets will
// place again.
func (q *qp) perform(peer *qp, wr *verbs.SendWR, in *inbox) bool {
	if q.legal>>wr.Opcode&1 == 0 || wr.NumSGE > q.sge.own || !wr.Flags.Valid() {
		return false
	}
	var segs [verbs.MaxSGE][]byte
	length, ok := q.segments(wr, &segs)
	if !ok {
		return false
	}
	in.leaveFor(length)
	if wr.Opcode == verbs.OpRDMARead {
		return q.readPlain(peer, wr, length, segs[:wr.NumSGE])
	}
	var dst []byte
	isWrite := wr.Opcode <= verbs.OpRDMAWriteWithImm
	if isWrite && length > 0 { // a WRITE of no bytes does not check its key
		dst, ok = peer.nic.mrs.get(wr.RKey).find(peer.pd, wr.RemoteAddr, length, verbs.AccessRemoteWrite)
	}
	if !ok || (isWrite && peer.attr.Access&verbs.AccessRemoteWrite == 0) {
		return false
	}
	var recv *recvWQE
	if wr.Opcode != verbs.OpRDMAWrite {
		if recv = peer.nextRecv(); recv == nil {
			return false
		}
	}
	off := uint32(0)
	for _, b := range segs[:wr.NumSGE] {
		if isWrite {
			dst = dst[bulk.Copy(dst, b):]
		} else if peer.scatterBytes(recv.sge[:recv.numSGE], off, b, ofPeer) != verbs.StatusSuccess {
			return false
		}
		off += uint32(len(b))
	}
	return recv == nil || in.complete(peer, wr, recv.wrid, length) != nil
}

// segments finds the local bytes of a request and returns their number. It reports false if the request
// breaks a rule of checkSend or names memory that it may not use.
func (q *qp) segments(wr *verbs.SendWR, segs *[verbs.MaxSGE][]byte) (length uint32, ok bool) {
	inline, need := wr.Flags&verbs.SendInline != 0, verbs.Access(0)
	if wr.Opcode >= verbs.OpRDMARead {
		need = verbs.AccessLocalWrite
	}
	var sum uint64
	for k := range wr.NumSGE {
		s := &wr.SGE[k]
		sum += uint64(s.Length)
		switch {
		case s.Length == 0:
		case !inline:
			if segs[k], ok = q.nic.mrs.get(s.LKey).find(q.pd, s.Addr, s.Length, need); !ok {
				return 0, false
			}
		case sum > uint64(q.maxInline) || need != 0 || q.nic.mrs.deviceOf(s.Addr, s.Length) != nil:
			return 0, false
		default:
			segs[k] = bytesAt(s.Addr, s.Length)
		}
	}
	return uint32(sum), sum <= maxMsgSize
}

// readPlain copies what a READ asks for into segs. It leaves READs that the peer may not have room for to
// the packets.
func (q *qp) readPlain(peer *qp, wr *verbs.SendWR, length uint32, segs [][]byte) bool {
	if !q.hasResources(peer) || peer.attr.Access&verbs.AccessRemoteRead == 0 {
		return false
	}
	if length == 0 { // a READ of no bytes does not check its key
		return true
	}
	src, ok := peer.nic.mrs.get(wr.RKey).find(peer.pd, wr.RemoteAddr, length, verbs.AccessRemoteRead)
	if !ok {
		return false
	}
	for _, dst := range segs {
		src = src[bulk.Copy(dst, src):]
	}
	return true
}

// hasResources reports whether the peer has room for every READ and atomic that q may send.
func (q *qp) hasResources(peer *qp) bool {
	return q.attr.MaxRdAtomic > 0 && q.attr.MaxRdAtomic <= peer.attr.MaxDestRdAtomic
}

// atomicPlain does an atomic, which has that PSN. It reports false, and nothing has changed, if the packets
// must do it.
func (q *qp) atomicPlain(peer *qp, wr *verbs.SendWR, psn roce.PSN) bool {
	if q.legal>>wr.Opcode&1 == 0 || wr.NumSGE > q.sge.own || !wr.Flags.Valid() || !q.hasResources(peer) ||
		wr.RemoteAddr%8 != 0 || peer.attr.Access&verbs.AccessRemoteAtomic == 0 {
		return false
	}
	var segs [verbs.MaxSGE][]byte
	if length, ok := q.segments(wr, &segs); !ok || length != 8 {
		return false
	}
	mem, ok := peer.nic.mrs.get(wr.RKey).find(peer.pd, wr.RemoteAddr, 8, verbs.AccessRemoteAtomic)
	if !ok {
		return false
	}
	var result [8]byte
	if wr.Opcode == verbs.OpAtomicFetchAndAdd {
		binary.NativeEndian.PutUint64(result[:], peer.execute(psn, mem, roce.OpFetchAdd, 0, wr.CompareAdd))
	} else {
		binary.NativeEndian.PutUint64(result[:], peer.execute(psn, mem, roce.OpCompareSwap, wr.CompareAdd, wr.Swap))
	}
	rest := result[:]
	for _, dst := range segs[:wr.NumSGE] {
		rest = rest[copy(dst, rest):]
	}
	return true
}

// nextRecv returns the receive that the next message uses, nil if there is none or if it has a list. It stays in the queue of
// the QP until the message completes it. One of an SRQ is taken, and leaves a limit event to the packets.
func (q *qp) nextRecv() *recvWQE {
	switch s := q.srq; {
	case q.hasCur:
		return q.cur.alone()
	case s != nil:
		s.Lock()
		defer s.Unlock()
		if (s.limit > 0 && uint32(s.ring.Len()) <= s.limit) || !q.takeRecv() {
			return nil
		}
		return q.cur.alone()
	case q.rq.ring.Len() == 0:
		return nil
	}
	return q.rq.ring.Front().alone()
}

// reportPlain completes requests that run has done. A CQ without room ends that: see handBack.
func (q *qp) reportPlain(wrs []verbs.SendWR) {
	c := q.sendCQ
	c.Lock()
	for i := range wrs {
		wr := &wrs[i]
		q.unreported++
		if wr.Flags&verbs.SendSignaled == 0 && !q.signalAll {
			continue
		}
		if c.full() {
			q.unreported--
			q.handBack(wrs[i:])
			break
		}
		wc := c.push(q.sqUsed, q.unreported, false)
		q.unreported = 0
		wc.WRID, wc.Status, wc.Opcode, wc.QPN, wc.ByteLen = wr.WRID, verbs.StatusSuccess, wr.Opcode.WC(), q.num, uint32(wr.Length())
		wc.Flags, wc.SL, wc.VendorErr, wc.Imm, wc.SrcQPN = 0, 0, 0, 0, 0
	}
	c.Unlock()
}

// handBack gives requests whose completions have no room to the packets. On RC it is as if the peer had
// served them and its acknowledgement had been lost: the requester sends them again from the first on. On
// UC and UD they have been sent, and transmit completes them. The caller shuts the gate of the pair, takes the
// core's lock and lets q transmit.
func (q *qp) handBack(wrs []verbs.SendWR) {
	if q.typ == verbs.RC {
		q.snd = q.snd.Add(roce.PSNMask + 1 - uint32(len(wrs)))
		q.una = q.snd
	}
	q.reserve(len(wrs))
	for i := range wrs {
		w := q.wqe(q.sqTail)
		w.set(&wrs[i], uint32(wrs[i].Length()))
		if w.flags&verbs.SendInline != 0 {
			q.copyInline(wrs[i].SGE[:wrs[i].NumSGE])
		}
		w.first = q.snd.Add(uint32(i))
		w.last = w.first
		q.sqTail++
	}
	q.sqMax = q.sqTail
	if q.typ != verbs.RC {
		q.sqNext = q.sqTail
	}
}

// inbox is the peer's receive CQ during a run. It stays locked between short requests.
type inbox struct {
	cq     *cq
	inside bool
}

// keepInside is the longest request, in bytes, that is copied while the CQ is locked.
const keepInside = 4096

// leaveFor unlocks the CQ before a request of so many bytes is copied, if that is long.
func (in *inbox) leaveFor(length uint32) {
	if in.inside && length > keepInside {
		in.leave()
	}
}

func (in *inbox) leave() {
	if in.inside {
		in.inside = false
		in.cq.Unlock()
	}
}

// complete completes the next receive of q for wr. It returns the completion, which the caller may change until
// it leaves, or nil if there is no room.
func (in *inbox) complete(q *qp, wr *verbs.SendWR, wrid uint64, length uint32) *verbs.WC {
	c := in.cq
	if !in.inside {
		in.inside = true
		c.Lock()
	}
	if c.full() {
		return nil
	}
	used := q.rq.used
	if q.srq != nil {
		used = q.srq.used
	}
	if q.hasCur {
		q.hasCur = false
	} else {
		q.rq.ring.Drop(1)
	}
	wc := c.push(used, 1, wr.Flags&verbs.SendSolicited != 0)
	wc.WRID, wc.Status, wc.Opcode, wc.QPN, wc.ByteLen = wrid, verbs.StatusSuccess, verbs.WCRecv, q.num, length
	wc.Flags, wc.SL, wc.VendorErr, wc.Imm, wc.SrcQPN = 0, 0, 0, 0, 0
	if wr.Opcode == verbs.OpRDMAWriteWithImm {
		wc.Opcode = verbs.WCRecvRDMAWithImm
	}
	if wr.Opcode != verbs.OpSend {
		wc.Flags, wc.Imm = verbs.WCWithImm, wr.Imm
	}
	return wc
}
