package softnic

import (
	"errors"
	"fmt"

	"ibverbx/verbs"
)

func (q *qp) PostSend(wrs []verbs.SendWR) (int, error) {
	p := q.guard()
	if p == nil {
		p = q.openGates()
	}
	c, n := q.core, 0
	if p == nil {
		var err error
		if r := q.ring(); r != nil {
			n, err = r.run(q, wrs)
		} else if q.typ == verbs.UD {
			n, err = q.runDatagrams(wrs)
		}
		if (n == len(wrs) || err != nil) && q.sqHead == q.sqTail {
			c.mu.Unlock()
			return n, err
		}
		c.mu.shut()
	} else {
		var err error
		n, err = p.run(q, wrs)
		if q.sqHead != q.sqTail { // requeued
			p.open.Store(false)
		} else if n == len(wrs) || err != nil {
			p.Unlock()
			return n, err
		}
		p.Unlock()
		c.mu.Lock()
	}
	n, err := q.postLocked(wrs, n)
	if n > 0 {
		c.lists.tx.push(q)
		c.settle()
		if q.lists&onLater != 0 {
			q.finishDirect()
		}
	}
	c.mu.Unlock()
	if err != nil {
		err = q.postError("post send", err)
	}
	return n, err
}

// postLocked posts the requests from wrs[n] on, and returns the number of requests posted, including
// the first n. The caller holds the core's lock.
func (q *qp) postLocked(wrs []verbs.SendWR, n int) (int, error) {
	if n == 0 {
		if p := q.paired(); p != nil && p.idle() {
			n, _ = p.run(q, wrs)
			p.fold()
		}
	}
	if q.injected == nil {
		return q.postSend(wrs, n)
	}
	return q.injected.send.post(len(wrs), func(limit int) (int, error) { return q.postSend(wrs[:limit], n) })
}

// postError wraps an error of a post, except a full queue, to keep back-pressure cheap.
func (q *qp) postError(op string, err error) error {
	if errors.Is(err, verbs.ErrQueueFull) {
		return verbs.ErrQueueFull
	}
	return q.opError(op, err)
}

// postSend adds requests from wrs[n] on to the ring, up to the first that does not fit or is illegal,
// and returns its index.
func (q *qp) postSend(wrs []verbs.SendWR, n int) (int, error) {
	if err := q.usable(); err != nil {
		return n, err
	}
	switch q.state {
	case verbs.StateReset, verbs.StateInit, verbs.StateRTR:
		return n, stateError("sends", "RTS", q.state)
	case verbs.StateRTS, verbs.StateSQD, verbs.StateSQE, verbs.StateErr:
	}
	tail := q.sqTail
	n, err := q.enqueue(wrs, n)
	q.sqUsed.taken += q.sqTail - tail
	return n, err
}

func (q *qp) enqueue(wrs []verbs.SendWR, n int) (int, error) {
	free := n + q.sqUsed.room(q.maxSend, len(wrs)-n)
	q.reserve(min(len(wrs), free) - n)
	ring := q.sq
	for i := n; i < len(wrs); i++ {
		wr := &wrs[i]
		if i >= free {
			return i, verbs.ErrQueueFull
		}
		sges := wr.SGE[:min(wr.NumSGE, verbs.MaxSGE)]
		if q.legal>>wr.Opcode&1 == 0 || wr.NumSGE > q.sge.own || !wr.Flags.Valid() {
			if sges = q.takeList(wr); sges == nil {
				return i, q.explainSend(i, wr)
			}
		}
		var length uint64
		for k := range sges {
			length += uint64(sges[k].Length)
		}
		if length > maxMsgSize || wr.Opcode > verbs.OpRDMAWriteWithImm || wr.Flags&verbs.SendInline != 0 {
			if err := q.checkSend(i, wr, length); err != nil {
				return i, err
			}
			if wr.Flags&verbs.SendInline != 0 {
				if err := q.checkInline(i, sges); err != nil {
					return i, err
				}
			}
		}
		ring[int(q.sqTail)&(len(ring)-1)].set(wr, uint32(length))
		if wr.Flags&verbs.SendInline != 0 {
			q.copyInline(sges)
		}
		q.sqTail++
	}
	return len(wrs), nil
}

func stateError(what, from string, now verbs.QPState) error {
	return fmt.Errorf("%w: the QP is in %s, and %s can be posted only from %s on", verbs.ErrState, now, what, from)
}

// explainSend returns the error for a request that violates a rule of postSend.
func (q *qp) explainSend(i int, wr *verbs.SendWR) error {
	switch {
	case q.legal>>wr.Opcode&1 == 0:
		return verbs.Invalidf("send %d of the chain: opcode %s is not legal on a %s QP", i, wr.Opcode, q.typ)
	case wr.NumSGE > max(q.sge.own, q.sge.list):
		return verbs.Invalidf("send %d of the chain: %d SGEs, the QP allows %d", i, wr.NumSGE, max(q.sge.own, q.sge.list))
	case wr.NumSGE > q.sge.own && wr.Flags.Valid():
		return errNotListed("send", i, wr.NumSGE)
	}
	return verbs.Invalidf("send %d of the chain: unknown flags %s", i, wr.Flags)
}

// checkSend validates inline, atomic, UD and very long requests.
func (q *qp) checkSend(i int, wr *verbs.SendWR, length uint64) error {
	inline := wr.Flags&verbs.SendInline != 0
	switch {
	case length > maxMsgSize:
		return verbs.Invalidf("send %d of the chain: %d bytes, the device's max_msg_sz is %d", i, length, maxMsgSize)
	case inline && wr.Opcode >= verbs.OpRDMARead:
		return verbs.Invalidf("send %d of the chain: INLINE is not legal on %s", i, wr.Opcode)
	case inline && length > uint64(q.maxInline):
		return verbs.Invalidf("send %d of the chain: %d inline bytes, the QP allows %d", i, length, q.maxInline)
	case wr.Opcode >= verbs.OpAtomicCmpAndSwp && length != 8:
		return verbs.Invalidf("send %d of the chain: an atomic needs a local buffer of 8 bytes, not %d", i, length)
	case q.typ != verbs.UD:
		return nil
	}
	if mtu := q.mtu().Bytes(); length > uint64(mtu) {
		return verbs.Invalidf("send %d of the chain: %d bytes do not fit a UD packet of %d", i, length, mtu)
	}
	if a := q.nic.ahs.get(uint32(wr.AH)); wr.AH>>32 != 0 || a == nil || a.pd != q.pd {
		return verbs.Invalidf("send %d of the chain: AH %d is not an open address handle of the PD", i, wr.AH)
	} else if !q.sealing.sends(a.path) {
		return verbs.Invalidf("send %d of the chain: AH %d does not have the Seal of the QP", i, wr.AH)
	}
	return nil
}

// Fits returns the error with which PostSend would refuse one of wrs, or nil. It posts nothing. It is not part of verbs.QP; callers that post
// all of a chain or nothing (ibv_wr_complete(3)) use a type assertion.
func (q *qp) Fits(wrs []verbs.SendWR) (err error) {
	if p := q.guard(); p != nil {
		err = q.fit(wrs)
		p.Unlock()
	} else {
		err = q.fit(wrs)
		q.core.mu.Unlock()
	}
	if err != nil {
		err = q.postError("post send", err)
	}
	return err
}

// fit is Fits with the gate or the core's mutex held. It checks what enqueue does.
func (q *qp) fit(wrs []verbs.SendWR) error {
	if q.sqUsed.room(q.maxSend, len(wrs)) < len(wrs) {
		return verbs.ErrQueueFull
	}
	for i := range wrs {
		wr := &wrs[i]
		sges := wr.SGE[:min(wr.NumSGE, verbs.MaxSGE)]
		switch {
		case q.listed(wr):
			sges = sgesAt(wr.SGE[0].Addr, wr.NumSGE)
		case q.legal>>wr.Opcode&1 == 0 || wr.NumSGE > q.sge.own || !wr.Flags.Valid():
			return q.explainSend(i, wr)
		}
		var length uint64
		for k := range sges {
			length += uint64(sges[k].Length)
		}
		if err := q.checkSend(i, wr, length); err != nil {
			return err
		}
		if wr.Flags&verbs.SendInline != 0 {
			if err := q.checkInline(i, sges); err != nil {
				return err
			}
		}
	}
	return nil
}

// copyInline copies the data of the INLINE request at tail.
func (q *qp) copyInline(sges []verbs.SGE) {
	if q.nic.observe != nil {
		q.touchInline(sges)
	}
	if q.inline == nil {
		q.inline = make([]byte, len(q.sq)*int(q.maxInline))
	}
	dst := q.inlineOf(q.sqTail)
	for k := range sges {
		if s := &sges[k]; s.Length > 0 {
			dst = dst[copy(dst, bytesAt(s.Addr, s.Length)):]
		}
	}
}

func (q *qp) PostRecv(wrs []verbs.RecvWR) (n int, err error) {
	if p := q.guard(); p != nil {
		if q.srq == nil {
			n, err = q.rq.post(wrs)
		} else {
			err = errPostToSRQ()
		}
		p.Unlock()
	} else {
		n, err = q.postRecv(wrs)
		q.core.mu.Unlock()
	}
	if err != nil {
		err = q.postError("post receive", err)
	}
	return n, err
}

// postRecv is PostRecv with the core's mutex held.
func (q *qp) postRecv(wrs []verbs.RecvWR) (int, error) {
	if err := q.usable(); err != nil {
		return 0, err
	}
	if q.srq != nil {
		return 0, errPostToSRQ()
	}
	if q.state == verbs.StateReset {
		return 0, stateError("receives", "INIT", q.state)
	}
	var n int
	var err error
	if q.injected == nil {
		n, err = q.rq.post(wrs)
	} else {
		n, err = q.injected.recv.post(len(wrs), func(limit int) (int, error) { return q.rq.post(wrs[:limit]) })
	}
	if n > 0 && q.credited {
		q.posted(n)
	}
	if q.state == verbs.StateErr {
		q.core.mu.shut()
		q.flushReceives()
		q.core.settle()
	} else if n > 0 && q.rnrSent {
		q.announceReceive()
	}
	return n, err
}

func errPostToSRQ() error { return verbs.Invalidf("the QP uses an SRQ: post receives to the SRQ") }

// sgeList holds the SGEs of a request with more than verbs.MaxSGE of them. Such requests are rare, so lists lie beside
// the queues.
type sgeList [maxSGE]verbs.SGE

// splitSGE returns the maximum number of SGEs in a request itself, and in a list: 0 without lists.
func splitSGE(n int) (own, list uint8) {
	if n > verbs.MaxSGE {
		return verbs.MaxSGE, uint8(n)
	}
	return uint8(max(n, 1)), 0
}

// sgeLists holds the SGE limits of a send queue, and the SGEs of requests with a list.
type sgeLists struct {
	// own is the maximum number of SGEs in a request itself, list that in a list.
	own, list uint8
	// lists holds the lists, one per slot of the queue. It is nil before the first one.
	lists []sgeList
}

func errNotListed(what string, i int, n uint8) error {
	return verbs.Invalidf("%s %d of the chain: %d SGEs do not fit the request; put them into a list and set Listed to 1", what, i, n)
}

// listed reports whether a request has a list and is valid otherwise.
func (q *qp) listed(wr *verbs.SendWR) bool {
	return wr.Listed == 1 && wr.NumSGE > verbs.MaxSGE && wr.NumSGE <= q.sge.list && q.legal>>wr.Opcode&1 != 0 && wr.Flags.Valid()
}

// takeList copies the list of a request to the slot at tail and returns it. It returns nil for a request without one,
// or that is invalid for another reason.
func (q *qp) takeList(wr *verbs.SendWR) []verbs.SGE {
	if !q.listed(wr) {
		return nil
	}
	if q.sge.lists == nil {
		q.sge.lists = make([]sgeList, len(q.sq))
	}
	list := q.listOf(q.sqTail)[:wr.NumSGE]
	copy(list, sgesAt(wr.SGE[0].Addr, wr.NumSGE))
	return list
}

// listOf returns the list of the request with sequence number i.
func (s *sendQueue) listOf(i uint32) *sgeList { return &s.sge.lists[int(i)&(len(s.sq)-1)] }

// sges returns the SGEs of the request with sequence number i.
func (s *sendQueue) sges(i uint32) []verbs.SGE {
	w := s.wqe(i)
	if w.numSGE > verbs.MaxSGE {
		return s.listOf(i)[:w.numSGE]
	}
	return w.sge[:w.numSGE]
}
