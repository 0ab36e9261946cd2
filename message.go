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
	if isAtomic(s.op) {
		k = kindAtomic
	}
	s.begun = true
	s.sent = s.length
	s.pending++
	q.messages++
	q.add(l, entryHead(q.index(q.dispatched), k, s.flags&verbs.SendSolicited), 0, s.length, s.imm)
	return true
}
