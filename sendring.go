package ibverbx

import "ibverbx/verbs"

// sendRing holds the requests that are outstanding. They enter in order and are reported
// in order, so those alive are a window of sequence numbers, and the slot of one is its
// number modulo the size of the ring:
//
//	reported <= dispatched <= posted
//
// Below reported everything has been told to the user; below dispatched everything was
// handed to lanes; below posted everything was taken from the user. The request at
// dispatched may be handed over in part.
type sendRing struct {
	sends                        []sendSlot
	reported, dispatched, posted uint32
}

// sendSlot is one request.
type sendSlot struct {
	wr     SendWR
	length uint32
	sent   uint32 // bytes handed to lanes
	frags  uint32 // fragments handed to lanes and not complete
	whole  bool   // all of it was handed to lanes, or never will be
	begun  bool   // a part of it was handed to lanes
	open   bool   // counted in VirtualQP.open
	owes   bool   // Spray: its notification is still to come
	status verbs.Status
	vendor uint32
}

// slot returns the slot of a sequence number.
func (r *sendRing) slot(seq uint32) *sendSlot {
	s := r.sends
	return &s[int(seq)&(len(s)-1)]
}

// full reports whether the ring takes no more.
func (r *sendRing) full() bool { return r.posted-r.reported == uint32(len(r.sends)) }

// ended reports whether nothing of the request is outstanding any more.
func (s *sendSlot) ended() bool { return s.whole && s.frags == 0 && !s.owes }

// isMessage reports whether the request goes over the message lane.
func (s *sendSlot) isMessage() bool {
	return s.wr.Opcode == verbs.OpSend || s.wr.Opcode == verbs.OpSendWithImm || s.wr.Opcode >= verbs.OpAtomicCmpAndSwp
}

// fail notes an error of the request; the first one counts.
func (s *sendSlot) fail(status verbs.Status, vendor uint32) {
	if s.status == verbs.StatusSuccess {
		s.status, s.vendor = status, vendor
	}
}
