package nullnic

import (
	"encoding/binary"

	"ibverbx/verbs"
)

// Wire joins NICs, so that held QPs can carry requests to the QPs that they are connected to. It
// only acts when called.
type Wire struct {
	nics map[verbs.GID]*NIC
}

// Join gives NICs distinct addresses and keys and joins them. Call it before creating any object
// on them.
func Join(nics ...*NIC) *Wire {
	w := &Wire{nics: make(map[verbs.GID]*NIC)}
	for i, n := range nics {
		n.wire = w
		n.gid[15] = byte(i + 1)
		n.nextKey = uint32(i+1) << 16
		w.nics[n.gid] = n
	}
	return w
}

// peer returns the QP that q is connected to, or nil if it does not respond.
func (q *QP) peer() *QP {
	if q.nic.wire == nil {
		return nil
	}
	n := q.nic.wire.nics[q.peerGID]
	if n == nil {
		return nil
	}
	for _, p := range n.qps {
		if p.num == q.peerQPN && !p.closed && (p.state == verbs.StateRTR || p.state == verbs.StateRTS) {
			return p
		}
	}
	return nil
}

// Carry executes the oldest uncarried send at the peer. It returns false if all are carried, or if
// the peer has not posted a receive yet. After a status other than success, the caller calls Fail
// once the earlier sends are complete.
func (q *QP) Carry() (verbs.Status, bool) {
	s := &q.queue
	if s.carried == len(s.posted) {
		return 0, false
	}
	wr := &s.posted[s.carried]
	payload, ok := s.inline[s.carried], true
	if payload == nil && carriesBytes(wr.Opcode) {
		payload, ok = q.nic.gather(wr.SGE[:wr.NumSGE])
	}
	if !ok {
		return verbs.StatusLocProtErr, true
	}
	status, done := q.execute(wr, payload)
	if done && status == verbs.StatusSuccess {
		s.carried++
	}
	return status, done
}

// CarryLate executes the oldest send that was in flight when its QP went to ERR and was flushed. It
// returns false if the queue is empty or the peer rejects the send.
func (q *QP) CarryLate() bool {
	s := &q.queue
	if len(s.late) == 0 {
		return false
	}
	status, done := q.execute(&s.late[0].wr, s.late[0].bytes)
	if !done || status != verbs.StatusSuccess {
		return false
	}
	s.late = s.late[1:]
	return true
}

// keepLate records the sends that are in flight when the QP goes to ERR.
func (q *QP) keepLate() {
	s := &q.queue
	if q.nic.wire == nil {
		return
	}
	for i := s.carried; i < len(s.posted); i++ {
		wr := s.posted[i]
		b, ok := s.inline[i], true
		if b == nil {
			b, ok = q.nic.gather(wr.SGE[:wr.NumSGE])
		}
		if !ok || !carriesBytes(wr.Opcode) {
			return // no test waits for a late READ or atomic
		}
		s.late = append(s.late, lateSend{wr, b})
	}
}

// carriesBytes reports whether a request carries bytes from this side to the other.
func carriesBytes(op verbs.Opcode) bool { return op <= verbs.OpSendWithImm }

// execute executes a request at the peer. It returns false if the peer has not posted a receive.
func (q *QP) execute(wr *verbs.SendWR, payload []byte) (verbs.Status, bool) {
	p := q.peer()
	if p == nil {
		return verbs.StatusRetryExcErr, true
	}
	consumes := wr.Opcode == verbs.OpRDMAWriteWithImm || wr.Opcode == verbs.OpSend || wr.Opcode == verbs.OpSendWithImm
	if consumes && len(p.pool.waiting()) == 0 {
		return verbs.StatusRNRRetryExcErr, false
	}
	var at []byte
	if wr.Opcode != verbs.OpSend && wr.Opcode != verbs.OpSendWithImm && wr.Length() > 0 {
		var ok bool
		if at, ok = p.nic.remote(wr.RKey, wr.RemoteAddr, wr.Length()); !ok {
			return verbs.StatusRemAccessErr, true
		}
	}
	sges := wr.SGE[:wr.NumSGE]
	wc := verbs.WC{Opcode: verbs.WCRecv, ByteLen: uint32(len(payload))}
	switch wr.Opcode {
	case verbs.OpRDMAWrite:
		copy(at, payload)
	case verbs.OpRDMAWriteWithImm:
		copy(at, payload)
		wc.Opcode, wc.Imm, wc.Flags = verbs.WCRecvRDMAWithImm, wr.Imm, verbs.WCWithImm
		p.Deliver(wc, nil)
	case verbs.OpSend:
		p.Deliver(wc, payload)
	case verbs.OpSendWithImm:
		wc.Imm, wc.Flags = wr.Imm, verbs.WCWithImm
		p.Deliver(wc, payload)
	case verbs.OpRDMARead:
		if !q.nic.scatter(sges, at) {
			return verbs.StatusLocProtErr, true
		}
	case verbs.OpAtomicCmpAndSwp, verbs.OpAtomicFetchAndAdd:
		return q.atomic(wr, at), true
	}
	return verbs.StatusSuccess, true
}

// atomic executes an atomic on eight bytes at the peer and returns their old value to the request.
func (q *QP) atomic(wr *verbs.SendWR, at []byte) verbs.Status {
	if len(at) != 8 {
		return verbs.StatusRemInvReqErr
	}
	old := binary.NativeEndian.Uint64(at)
	if !q.nic.scatter(wr.SGE[:wr.NumSGE], binary.NativeEndian.AppendUint64(nil, old)) {
		return verbs.StatusLocProtErr
	}
	switch {
	case wr.Opcode == verbs.OpAtomicFetchAndAdd:
		binary.NativeEndian.PutUint64(at, old+wr.CompareAdd)
	case old == wr.CompareAdd:
		binary.NativeEndian.PutUint64(at, wr.Swap)
	}
	return verbs.StatusSuccess
}
