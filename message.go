package ibverbx

import "ibverbx/verbs"

// sendMessage hands a SEND or an atomic to the message lane. It reports false if that has
// no room.
func (q *VirtualQP) sendMessage(s *sendSlot) bool {
	l := q.messageLane
	if !l.room() {
		return false
	}
	e := entry{slot: q.index(q.dispatched), kind: kindMessage, flags: s.flags & verbs.SendSolicited, bytes: s.length, imm: s.imm}
	if isAtomic(s.op) {
		e.kind = kindAtomic
	}
	q.fragment(l, s, e)
	return true
}
