package ibverbx

import "ibverbx/verbs"

// sendMessage hands a SEND or an atomic to the message lane. It reports false if that has
// no room.
func (q *VirtualQP) sendMessage(s *sendSlot) bool {
	l := q.messageLane
	if !l.room() {
		return false
	}
	head := entryHead(q.index(q.dispatched), kindMessage, s.flags&verbs.SendSolicited) | entryConsumes
	if isAtomic(s.op) {
		if l.rail != l.life.home {
			return false // atomics of two NICs are not atomic together: wait for the rail
		}
		head = entryHead(q.index(q.dispatched), kindAtomic, 0)
	}
	s.begun = true
	s.sent = s.length
	s.pending++
	q.messages++
	q.add(l, head, 0, s.length, s.imm)
	return true
}
