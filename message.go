package ibverbx

import "ibverbx/verbs"

// sendMessage hands a SEND or an atomic to the message lane. It reports false if that has
// no room.
func (q *VirtualQP) sendMessage(s *sendSlot) bool {
	l := q.messageLane
	if !l.room() {
		return false
	}
	k := kindMessage
	if s.wr.Opcode >= verbs.OpAtomicCmpAndSwp {
		k = kindAtomic
	}
	wr := l.add(k, q.dispatched, s.length)
	wr.Opcode, wr.Flags, wr.Imm = s.wr.Opcode, s.wr.Flags&verbs.SendSolicited, s.wr.Imm
	wr.NumSGE, wr.RemoteAddr, wr.RKey = 0, 0, 0
	if k == kindAtomic {
		wr.RemoteAddr = s.wr.Remote.Addr + s.wr.RemoteOffset
		wr.RKey = s.wr.Remote.RKeys[l.remoteRail]
		wr.CompareAdd, wr.Swap = s.wr.CompareAdd, s.wr.Swap
	}
	if s.wr.Flags&verbs.SendInline != 0 {
		q.inlinePiece(wr, q.dispatched, 0, s.length)
	} else if s.length > 0 {
		cut(wr, &s.wr, l.rail, 0, s.length)
	}
	s.begun = true
	s.sent = s.length
	s.frags++
	q.stageOn(l)
	return true
}
