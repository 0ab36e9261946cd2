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

// sendSlot is one request. Its first 64 bytes are all that a plain request on one or two
// rails needs on its way from the post to the report; they hold no pointer.
type sendSlot struct {
	id     uint64
	local  uint64 // address of the bytes of a plain request
	target uint64 // address at the peer
	length uint32
	sent   uint32 // bytes handed to lanes
	// pending counts what the request waits for: its fragments that lanes have, one for
	// the rest that no lane has yet, and one for a notification that is still to be sent.
	pending uint32
	cut     uint32 // bytes of a fragment
	op      verbs.Opcode
	wire    verbs.Opcode // what its fragments are
	flags   verbs.SendFlags
	status  verbs.Status
	numSGE  uint8
	plain   bool // one piece of memory, not inline, not empty
	begun   bool // a part of it was handed to lanes
	owes    bool // Spray: its notification is still to come
	keys    [MaxRails]keyPair

	record           [recordSize]byte // Tally: what its lanes tell the receiver
	imm              uint32
	vendor           uint32
	deadline         int64 // with Config.Control
	compareAdd, swap uint64
	sge              [MaxSGE]SGE // of a request that is not plain
}

// keyPair is the key of the local memory on one of our rails, and of the remote memory on
// the peer's rail of the same index.
type keyPair struct{ local, remote uint32 }

// slot returns the slot of a sequence number.
func (r *sendRing) slot(seq uint32) *sendSlot {
	s := r.sends
	return &s[int(seq)&(len(s)-1)]
}

// index is the place of a sequence number, as ledgers keep it.
func (r *sendRing) index(seq uint32) uint16 { return uint16(seq & uint32(len(r.sends)-1)) }

// room is how many requests the ring takes.
func (r *sendRing) room() int { return len(r.sends) - int(r.posted-r.reported) }

// isMessage reports whether the request goes over the message lane.
func (s *sendSlot) isMessage() bool { return isMessage(s.op) || isAtomic(s.op) }

func isMessage(op verbs.Opcode) bool { return op == verbs.OpSend || op == verbs.OpSendWithImm }
func isAtomic(op verbs.Opcode) bool  { return op >= verbs.OpAtomicCmpAndSwp }

// dataKind is the kind of its fragments.
func (s *sendSlot) dataKind() kind {
	if s.plain {
		return kindPlain
	}
	return kindData
}

// fail notes an error of the request; the first one counts.
func (s *sendSlot) fail(status verbs.Status, vendor uint32) {
	if s.status == verbs.StatusSuccess {
		s.status, s.vendor = status, vendor
	}
}
