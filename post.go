package ibverbx

import (
	"errors"
	"fmt"
	"math"

	"ibverbx/verbs"
)

// PostSend posts requests. wrs[:n] were taken, nothing after n was. verbs.ErrQueueFull is
// ordinary back-pressure: poll, then post the rest. A request that is taken completes:
// in success, in error, or flushed.
func (q *VirtualQP) PostSend(wrs []SendWR) (n int, err error) {
	q.cq.guard.enter("PostSend")
	n, err = q.postSend(wrs)
	q.cq.guard.leave()
	return n, err
}

func (q *VirtualQP) postSend(wrs []SendWR) (n int, err error) {
	if q.direct {
		return q.passDown(wrs)
	}
	if q.state == stateNew || q.state == stateClosed {
		return 0, q.opError("post send", q.notConnected())
	}
	take := min(len(wrs), q.room())
	for n < take {
		wr := &wrs[n]
		if q.isPlain(wr) {
			q.takePlain(wr)
		} else if err = q.takeOther(wr); err != nil {
			err = q.opError("post send", fmt.Errorf("request %d of the chain: %w", n, err))
			break
		}
		q.posted++
		n++
	}
	if q.cfg.Control != nil {
		q.setDeadlines(uint32(n))
	}
	q.counted.posted += uint64(n)
	q.counted.highWater = max(q.counted.highWater, int(q.posted-q.reported))
	q.dispatch()
	if err == nil && n < len(wrs) {
		err = verbs.ErrQueueFull
	}
	return n, err
}

// setDeadlines notes when the last n requests must have ended. A Deadline that is longer than
// the clock goes on means never.
func (q *VirtualQP) setDeadlines(n uint32) {
	q.tick()
	deadline := q.now + min(int64(q.cfg.Deadline), math.MaxInt64-1-max(q.now, 0))
	for seq := q.posted - n; seq != q.posted; seq++ {
		q.slot(seq).deadline = deadline
	}
}

// isPlain reports whether a request is a WRITE or READ of one piece without anything
// special about it, and right. Whatever is not is looked at more closely.
func (q *VirtualQP) isPlain(wr *SendWR) bool {
	e, m := &wr.SGE[0], wr.Remote
	r := e.Region
	length := uint64(e.Length)
	return wr.NumSGE == 1 && plainOps>>wr.Opcode&1 != 0 && wr.Flags&^plainFlags == 0 &&
		r != nil && m != nil && r.rails == q.rails && length != 0 &&
		e.Offset <= r.length && length <= r.length-e.Offset &&
		wr.RemoteOffset <= m.Length && length <= m.Length-wr.RemoteOffset && len(m.RKeys) >= q.remoteRails
}

const (
	plainOps   = uint32(1<<verbs.OpRDMAWrite | 1<<verbs.OpRDMAWriteWithImm | 1<<verbs.OpRDMARead)
	plainFlags = verbs.SendSignaled | verbs.SendSolicited | verbs.SendFence
)

// takePlain puts a plain request into the slot at posted.
func (q *VirtualQP) takePlain(wr *SendWR) {
	e, m := &wr.SGE[0], wr.Remote
	r := e.Region
	s := q.slot(q.posted)
	s.id, s.local, s.target = wr.WRID, r.addr+e.Offset, m.Addr+wr.RemoteOffset
	s.length, s.sent, s.pending, s.cut = e.Length, 0, 1, q.fragmentSize(e.Length)
	s.op, s.wire, s.flags, s.status, s.numSGE = wr.Opcode, q.wire[wr.Opcode&7], wr.Flags, verbs.StatusSuccess, 1
	s.plain, s.begun, s.owes = true, false, false
	s.imm = wr.Imm
	q.setKeys(s, r, m)
}

// setKeys notes the keys of a request for every rail that lanes use.
func (q *VirtualQP) setKeys(s *sendSlot, r *Region, m *RemoteRegion) {
	if r != nil {
		for i := range q.rails.rails {
			s.keys[i].local = r.lkeys[i]
		}
	}
	if m != nil {
		for i := range q.remoteRails {
			s.keys[i].remote = m.RKeys[i]
		}
	}
}

// takeOther checks everything that can be wrong with a request and puts it into the slot
// at posted.
func (q *VirtualQP) takeOther(wr *SendWR) error {
	length, err := q.check(wr)
	if err != nil {
		return err
	}
	s := q.slot(q.posted)
	*s = sendSlot{
		id: wr.WRID, length: uint32(length), pending: 1, cut: q.fragmentSize(uint32(length)),
		op: wr.Opcode, wire: q.wire[wr.Opcode&7], flags: wr.Flags, numSGE: wr.NumSGE,
		imm: wr.Imm, compareAdd: wr.CompareAdd, swap: wr.Swap, sge: wr.SGE,
	}
	if !isMessage(wr.Opcode) && length > 0 {
		s.target = wr.Remote.Addr + wr.RemoteOffset
		q.setKeys(s, nil, wr.Remote)
	}
	switch {
	case wr.Flags&verbs.SendInline != 0:
		q.copyInline(wr)
	case wr.NumSGE == 1 && length > 0:
		e := &wr.SGE[0]
		s.plain, s.local = true, e.Region.addr+e.Offset
		q.setKeys(s, e.Region, nil)
	}
	return nil
}

func (q *VirtualQP) notConnected() error {
	if q.state == stateClosed {
		return verbs.ErrClosed
	}
	return fmt.Errorf("%w: connect the virtual QP first", verbs.ErrState)
}

func (q *VirtualQP) opError(op string, err error) error {
	return verbs.NewOpError(op, fmt.Sprintf("virtual QP %d", q.num), 0, err)
}

// check looks at everything that can be wrong with a request, before anything is done.
func (q *VirtualQP) check(wr *SendWR) (length uint64, err error) {
	if wr.NumSGE > MaxSGE {
		return 0, verbs.Invalidf("%d SGEs, at most %d are allowed", wr.NumSGE, MaxSGE)
	}
	if !wr.Flags.Valid() {
		return 0, verbs.Invalidf("unknown flags %s", wr.Flags)
	}
	if wr.Opcode > verbs.OpAtomicFetchAndAdd {
		return 0, verbs.Invalidf("unknown opcode %s", wr.Opcode)
	}
	inline := wr.Flags&verbs.SendInline != 0
	for i := range wr.NumSGE {
		e := &wr.SGE[i]
		length += uint64(e.Length)
		if err := q.checkLocal(e); err != nil {
			return 0, fmt.Errorf("SGE %d: %w", i, err)
		}
	}
	atomic, message := isAtomic(wr.Opcode), isMessage(wr.Opcode)
	switch {
	case length == 0 && (wr.Opcode == verbs.OpRDMAWrite || wr.Opcode == verbs.OpRDMARead):
		return 0, verbs.Invalidf("%s of no bytes", wr.Opcode)
	case atomic && length != 8:
		return 0, verbs.Invalidf("%s needs a local buffer of 8 bytes, not %d", wr.Opcode, length)
	case message && q.cfg.CxxPeer && !q.direct:
		return 0, verbs.Invalidf("%s on several lanes: a C++ peer has no lane for messages", wr.Opcode)
	case message && length > uint64(q.maxMsg):
		return 0, verbs.Invalidf("%s of %d bytes must fit one lane, which takes %d", wr.Opcode, length, q.maxMsg)
	case length > math.MaxUint32:
		return 0, verbs.Invalidf("%d bytes, at most %d fit one request", length, uint32(math.MaxUint32))
	case inline && (atomic || wr.Opcode == verbs.OpRDMARead):
		return 0, verbs.Invalidf("INLINE is not legal on %s", wr.Opcode)
	case inline && length > uint64(q.cfg.MaxInline):
		return 0, verbs.Invalidf("%d inline bytes, Config.MaxInline is %d", length, q.cfg.MaxInline)
	}
	if message || (length == 0 && wr.Opcode == verbs.OpRDMAWriteWithImm) {
		return length, nil // nothing at the other side is named
	}
	return length, q.checkRemote(wr, length)
}

func (q *VirtualQP) checkLocal(e *SGE) error {
	switch {
	case e.Region == nil:
		return verbs.Invalidf("no region")
	case e.Region.rails != q.rails:
		return verbs.Invalidf("the region is registered on other rails")
	case e.Offset > e.Region.length || uint64(e.Length) > e.Region.length-e.Offset:
		return verbs.Invalidf("%d bytes at %d of a region of %d", e.Length, e.Offset, e.Region.length)
	}
	return nil
}

func (q *VirtualQP) checkRemote(wr *SendWR, length uint64) error {
	m := wr.Remote
	switch {
	case m == nil:
		return verbs.Invalidf("no remote region")
	case wr.RemoteOffset > m.Length || length > m.Length-wr.RemoteOffset:
		return verbs.Invalidf("%d bytes at %d of a remote region of %d", length, wr.RemoteOffset, m.Length)
	case len(m.RKeys) < q.remoteRails:
		return verbs.Invalidf("the remote region has keys for %d rails, the lanes use %d", len(m.RKeys), q.remoteRails)
	}
	return nil
}

// copyInline takes the bytes of an inline request: dispatch may be later than the post.
func (q *VirtualQP) copyInline(wr *SendWR) {
	dst := q.inlineOf(q.posted)
	for i := range wr.NumSGE {
		e := &wr.SGE[i]
		dst = dst[copy(dst, e.Region.Bytes()[e.Offset:][:e.Length]):]
	}
}

// inlineOf returns the inline bytes of a request.
func (q *VirtualQP) inlineOf(seq uint32) []byte {
	i := int(seq) & (len(q.sends) - 1)
	return q.inline[i*q.cfg.MaxInline:][:q.cfg.MaxInline]
}

// isBackPressure reports whether a NIC refused for want of room.
func isBackPressure(err error) bool { return errors.Is(err, verbs.ErrQueueFull) }
