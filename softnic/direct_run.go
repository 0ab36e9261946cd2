package softnic

import (
	"encoding/binary"

	"ibverbx/internal/ntcopy"
	"ibverbx/internal/roce"
	"ibverbx/verbs"
)

// plainFlags are the flags that run supports on a WRITE. A fence is a no-op because no earlier request
// is outstanding.
const plainFlags = verbs.SendSignaled | verbs.SendSolicited | verbs.SendFence

// run executes requests of q in order, bypassing packets and the send queue, until one is not plain: an
// error, a missing receive or a full CQ. The packet path handles that one. run returns the number
// executed, and ErrQueueFull if the queue is full. The caller is inside the pair's gate, or holds the
// core's lock while the pair is idle. The pair is idle afterwards, unless requeue queued requests.
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
		err = nil // the packet path handles the next request
	}
	return n, err
}

// burst is run without the queue limit. It stops after maxRdAtomic atomics because requeue needs their
// results. All its device copies form one batch.
func (p *pair) burst(q *qp, wrs []verbs.SendWR) (n int) {
	peer := p.other(q)
	if q.typ == verbs.UC && peer.pd.keyGuesses.wrong >= maxKeyGuesses {
		return 0 // the packet path decides whether WRITEs are still blocked
	}
	var reads, atomics int
	var signaled verbs.SendFlags
	var queued bool // device copies are pending
	var placed int  // requests in place even if the pending copies fail
	in := inbox{cq: peer.recvCQ}
	for n < len(wrs) && atomics < maxRdAtomic {
		wr := &wrs[n]
		if wr.Opcode < verbs.OpRDMARead && !queued {
			k, flags := q.hostCopies(peer, wrs[n:], &in)
			signaled |= flags
			if n += k; n == len(wrs) {
				break
			}
			wr = &wrs[n]
		}
		if !queued {
			placed = n
		}
		c, k, flags := p.batch(), 0, wr.Flags
		if wr.Opcode > verbs.OpRDMARead {
			k = index(c.flush() && c.atomic(q, peer, wr, q.snd.Add(uint32(n))))
			atomics++
		} else {
			if wr.Opcode == verbs.OpRDMAWrite && q.nic.mrs.get(wr.SGE[0].LKey).device != nil {
				in.leave()
				k, flags = c.withinDevice(q, peer, wrs[n:])
			}
			if k == 0 {
				k, flags = index(c.request(q, peer, wr, &in)), wr.Flags
			}
		}
		if queued = c.queued(); k == 0 {
			break
		}
		n += k
		reads += index(wr.Opcode >= verbs.OpRDMARead)
		signaled |= flags
	}
	in.leave()
	if queued && !p.copies.flushAndClear() {
		n, reads, signaled = placed, 0, verbs.SendSignaled
		for i := range wrs[:n] {
			reads += index(wrs[i].Opcode >= verbs.OpRDMARead)
		}
	}
	if n > 0 {
		t := &p.traffic[index(p.qps[1] == q)]
		t.requests += uint64(n)
		if q.typ == verbs.RC {
			t.answers += uint64(reads + index(n > reads)) // one ACK covers the others
		}
		q.sqUsed.taken += uint32(n)
		q.snd = q.snd.Add(uint32(n))
		q.una, q.maxPSN, peer.epsn, peer.unackedPSNs = q.snd, q.snd, q.snd, 0
		q.retryLeft, q.rnrLeft = q.attr.RetryCount, q.attr.RNRRetry
		peer.msn += uint32(n)
		peer.filled()
		if signaled&verbs.SendSignaled != 0 || q.signalAll {
			q.reportPlain(wrs[:n])
		} else {
			q.withoutCQE += uint32(n)
		}
	}
	return n
}

// hostCopies executes the single-SGE WRITEs and SENDs between host memory at the start of wrs, and
// returns their number and flags. request would be 3 times slower for a WRITE and 7% slower for a SEND,
// and the pair would need a batch of 700 bytes.
func (q *qp) hostCopies(peer *qp, wrs []verbs.SendWR, in *inbox) (n int, flags verbs.SendFlags) {
	writes := peer.attr.Access&verbs.AccessRemoteWrite != 0
	for ; n < len(wrs); n++ {
		wr := &wrs[n]
		s := &wr.SGE[0]
		if wr.NumSGE != 1 || s.Length-1 >= maxMsgSize {
			break
		}
		var recv *recvWQE
		if wr.Opcode <= verbs.OpRDMAWriteWithImm {
			if !writes || wr.Flags&^plainFlags != 0 {
				break
			}
			src, ok := q.nic.mrs.get(s.LKey).find(q.pd, s.Addr, s.Length, 0)
			if !ok {
				break
			}
			dst, ok := peer.nic.mrs.get(wr.RKey).find(peer.pd, wr.RemoteAddr, s.Length, verbs.AccessRemoteWrite)
			if !ok {
				break
			}
			in.leaveFor(s.Length)
			if wr.Opcode == verbs.OpRDMAWriteWithImm {
				if recv = peer.nextRecv(); recv == nil {
					break
				}
			}
			ntcopy.Copy(dst, src)
		} else if recv = q.hostSend(peer, wr, in); recv == nil {
			break
		}
		if recv != nil && in.complete(peer, wr, recv.wrid, s.Length) == nil {
			break
		}
		flags |= wr.Flags
	}
	return n, flags
}

// hostSend copies the SGE of a SEND into the first SGE of the peer's next receive, which it returns. It
// returns nil if wr is not such a SEND, or if either range is not host memory that its QP may use.
func (q *qp) hostSend(peer *qp, wr *verbs.SendWR, in *inbox) *recvWQE {
	s := &wr.SGE[0]
	inline := wr.Flags&verbs.SendInline != 0
	if wr.Opcode >= verbs.OpRDMARead || wr.Flags&^(plainFlags|verbs.SendInline) != 0 ||
		inline && (s.Length > q.maxInline || q.nic.mrs.devices.Load() != nil) {
		return nil
	}
	recv := peer.nextRecv()
	if recv == nil || recv.numSGE == 0 || recv.sge[0].Length < s.Length {
		return nil
	}
	to := &recv.sge[0]
	dst, ok := peer.nic.mrs.get(to.LKey).find(peer.pd, to.Addr, s.Length, verbs.AccessLocalWrite)
	if !ok {
		return nil
	}
	if inline {
		copy(dst, bytesAt(s.Addr, s.Length))
		return recv
	}
	src, ok := q.nic.mrs.get(s.LKey).find(q.pd, s.Addr, s.Length, 0)
	if !ok {
		return nil
	}
	in.leaveFor(s.Length)
	ntcopy.Copy(dst, src)
	return recv
}

// batch returns the pair's device batch and operands, allocated on first use.
func (p *pair) batch() *copies {
	if p.copies == nil {
		p.copies = &copies{}
	}
	return p.copies
}

// withinDevice queues the single-SGE WRITEs at the start of wrs that share a source and a destination
// region, both on devices, and returns their number and flags. Long chains consist of such WRITEs, and
// request would be four times slower.
func (c *copies) withinDevice(q, peer *qp, wrs []verbs.SendWR) (n int, flags verbs.SendFlags) {
	lkey, rkey := wrs[0].SGE[0].LKey, wrs[0].RKey
	src, dst := q.nic.mrs.get(lkey), peer.nic.mrs.get(rkey)
	_, ok := src.onDevice(q.pd, src.addr, 0, 0)
	_, found := dst.onDevice(peer.pd, dst.addr, 0, verbs.AccessRemoteWrite)
	if !ok || !found || peer.attr.Access&verbs.AccessRemoteWrite == 0 {
		return 0, 0
	}
	for n < len(wrs) && !c.failed {
		wr := &wrs[n]
		e := &wr.SGE[0]
		length, from, to := uint64(e.Length), e.Addr-src.addr, wr.RemoteAddr-dst.addr
		if wr.Opcode != verbs.OpRDMAWrite || wr.NumSGE != 1 || wr.Flags&^plainFlags != 0 || e.LKey != lkey || wr.RKey != rkey ||
			length-1 >= maxMsgSize || from > src.length || length > src.length-from || to > dst.length || length > dst.length-to {
			break
		}
		one := c.next(dst.device)
		one.To, one.From, one.Len = dst.base+to, src.base+from, length
		flags |= wr.Flags
		n++
	}
	return n, flags
}

// request executes one SEND, WRITE or READ: it moves the data and completes the peer's receive. Device
// copies may remain queued. It returns false if the packet path must execute the request. In that case
// only payload bytes were written, and the packet path writes them again.
func (c *copies) request(q, peer *qp, wr *verbs.SendWR, in *inbox) bool {
	local, remote := &c.local, &c.remote
	local.reset()
	remote.reset()
	if !local.addRequest(q, wr) {
		return false
	}
	length, read := uint32(local.length), wr.Opcode == verbs.OpRDMARead
	if read || wr.Opcode <= verbs.OpRDMAWriteWithImm {
		access := verbs.AccessRemoteWrite
		if read {
			access = verbs.AccessRemoteRead
		}
		switch {
		case peer.attr.Access&access == 0, read && !q.hasResources(peer):
			return false
		case length > 0 && !remote.add(peer, wr.RKey, wr.RemoteAddr, length, access): // empty requests ignore the key
			return false
		}
	}
	var recv *recvWQE
	if wr.Opcode != verbs.OpRDMAWrite && !read {
		if recv = peer.nextRecv(); recv == nil {
			return false
		}
		if wr.Opcode != verbs.OpRDMAWriteWithImm && !remote.addSGEs(peer, recv.sge[:recv.numSGE], 0, length, verbs.AccessLocalWrite) {
			return false
		}
	}
	if in.leaveFor(length); local.device || remote.device {
		in.leave()
	}
	if read {
		c.move(local, remote)
	} else {
		c.move(remote, local)
	}
	if recv == nil {
		return !c.failed
	}
	return c.flush() && in.complete(peer, wr, recv.wrid, length) != nil // the completion covers the requests before it
}

// hasResources reports whether the peer has responder resources for q's maximum of outstanding READs
// and atomics.
func (q *qp) hasResources(peer *qp) bool {
	return q.attr.MaxRdAtomic > 0 && q.attr.MaxRdAtomic <= peer.attr.MaxDestRdAtomic
}

// atomic executes an atomic with the given PSN. It returns false, without effect, if the packet path
// must execute it, for example because the result is stored in device memory.
func (c *copies) atomic(q, peer *qp, wr *verbs.SendWR, psn roce.PSN) bool {
	if !q.hasResources(peer) || wr.RemoteAddr%8 != 0 || peer.attr.Access&verbs.AccessRemoteAtomic == 0 {
		return false
	}
	local, remote := &c.local, &c.remote
	local.reset()
	remote.reset()
	if !local.addRequest(q, wr) || local.length != 8 || local.device {
		return false
	}
	mem, ok := peer.nic.mrs.get(wr.RKey).find(peer.pd, wr.RemoteAddr, 8, verbs.AccessRemoteAtomic)
	if !ok || !isAligned(mem) {
		return false
	}
	if wr.Opcode == verbs.OpAtomicFetchAndAdd {
		binary.NativeEndian.PutUint64(c.word[:], peer.execute(psn, mem, roce.OpFetchAdd, 0, wr.CompareAdd))
	} else {
		binary.NativeEndian.PutUint64(c.word[:], peer.execute(psn, mem, roce.OpCompareSwap, wr.CompareAdd, wr.Swap))
	}
	remote.addHost(c.word[:])
	c.move(local, remote)
	return true
}

// nextRecv returns the receive for the next message, nil if the queue is empty or the receive has a
// list. The receive stays in the QP's queue until the message completes it. A receive of an SRQ is
// dequeued, unless a limit event or waiting QPs require the packet path.
func (q *qp) nextRecv() *recvWQE {
	switch s := q.srq; {
	case q.hasCur:
		return q.cur.unlisted()
	case s != nil:
		s.Lock()
		defer s.Unlock()
		if (s.limit > 0 && uint32(s.ring.Len()) <= s.limit) || s.ring.Len() <= len(s.turns) || !q.claimRecv() {
			return nil
		}
		return q.cur.unlisted()
	case q.rq.ring.Len() == 0:
		return nil
	}
	return q.rq.ring.Front().unlisted()
}

// reportPlain completes requests executed by run. If the CQ is full, requeue handles the rest.
func (q *qp) reportPlain(wrs []verbs.SendWR) {
	c := q.sendCQ
	c.Lock()
	for i := range wrs {
		wr := &wrs[i]
		q.withoutCQE++
		if wr.Flags&verbs.SendSignaled == 0 && !q.signalAll {
			continue
		}
		if c.full() {
			q.withoutCQE--
			q.requeue(wrs[i:])
			break
		}
		wc := c.push(q.sqUsed, q.withoutCQE, false)
		q.withoutCQE = 0
		wc.WRID, wc.Status, wc.Opcode, wc.QPN, wc.ByteLen = wr.WRID, verbs.StatusSuccess, wr.Opcode.WC(), q.num, uint32(wr.Length())
		wc.Flags, wc.SL, wc.VendorErr, wc.Imm, wc.SrcQPN = 0, 0, 0, 0, 0
	}
	c.Unlock()
}

// requeue passes requests without space for their completions to the packet path. On RC they count as
// executed with a lost ACK, so the requester sends them all again. On UC and UD they count as sent, and
// transmit completes them. The caller shuts the pair's gate, locks the core and lets q transmit.
func (q *qp) requeue(wrs []verbs.SendWR) {
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

// keepInside is the maximum length, in bytes, of a request copied while the CQ is locked.
const keepInside = 4096

// leaveFor unlocks the CQ before a copy of length bytes, if that exceeds keepInside.
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

// complete completes the next receive of q for wr. It returns the completion, which the caller may
// modify until it leaves, or nil if the CQ is full.
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
