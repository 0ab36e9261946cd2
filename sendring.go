package ibverbx

import "ibverbx/verbs"

// sendRing holds the requests that are outstanding. They enter in order and are reported in order,
// so those alive are a window of sequence numbers, and the slot of a request is its number modulo
// the size of the ring:
//
//	reported <= dispatched <= posted
//
// The request at dispatched may be handed to lanes in part.
type sendRing struct {
	// slots is the ring. Its length is a power of two.
	slots []sendSlot
	// reported is the number of the oldest request that was not reported to the user.
	reported uint32
	// dispatched is the number of the oldest request that was not wholly handed to lanes.
	dispatched uint32
	// posted is the number of the next request.
	posted uint32
}

// sendSlot is one request. A plain request on one or two rails needs only the first 64 bytes on its
// way from the post to the report. These hold no pointer, so that writing them needs no write
// barrier.
type sendSlot struct {
	id uint64
	// local is the address of the bytes of a plain request.
	local uint64
	// target is the address at the peer.
	target uint64
	length uint32
	// sent is the number of bytes handed to lanes.
	sent uint32
	// pending counts what the request waits for: the fragments that lanes have, 1 for the rest
	// that no lane has, and 1 for a notification that was not sent. At 0 the request has ended.
	pending uint32
	// cut is the size of a fragment in bytes.
	cut uint32
	op  verbs.Opcode
	// wire is the opcode of the fragments.
	wire   verbs.Opcode
	flags  verbs.SendFlags
	status verbs.Status
	numSGE uint8
	// plain says that the bytes are one piece of memory, neither inline nor empty.
	plain bool
	// begun says that a part of the request was handed to lanes.
	begun bool
	// owes says that the notification of Spray was not sent. It is counted in sender.owed.
	owes bool
	// keys are the memory keys by rail.
	keys [MaxRails]keyPair

	// record is what Tally's lanes send to the receiver.
	record [recordSize]byte
	imm    uint32
	// vendor is the vendor error of a request that failed.
	vendor uint32
	// deadline is when the request must have ended; with Config.Control only.
	deadline   int64
	compareAdd uint64
	swap       uint64
	// sge are the pieces of a request that is not plain.
	sge [MaxSGE]SGE
}

// keyPair is the key of the local memory on one of our rails, and of the remote memory on the
// peer's rail of the same index.
type keyPair struct{ local, remote uint32 }

// slot returns the slot of a sequence number.
func (r *sendRing) slot(seq uint32) *sendSlot {
	s := r.slots
	return &s[int(seq)&(len(s)-1)]
}

// index is the place of a sequence number in the ring, as ledgers keep it.
func (r *sendRing) index(seq uint32) uint16 { return uint16(seq & uint32(len(r.slots)-1)) }

// room is how many more requests the ring takes.
func (r *sendRing) room() int { return len(r.slots) - int(r.posted-r.reported) }

// oldest returns the number of the oldest request that has not ended, if there is one.
func (r *sendRing) oldest() (seq uint32, ok bool) {
	for seq = r.reported; seq != r.posted; seq++ {
		if r.slot(seq).pending != 0 {
			return seq, true
		}
	}
	return 0, false
}

// reportable reports whether the oldest request has ended.
func (r *sendRing) reportable() bool {
	return r.reported != r.posted && r.slot(r.reported).pending == 0
}

// isMessage reports whether the request goes over the message lane.
func (r *sendSlot) isMessage() bool { return isMessage(r.op) || isAtomic(r.op) }

func isMessage(op verbs.Opcode) bool { return op == verbs.OpSend || op == verbs.OpSendWithImm }
func isAtomic(op verbs.Opcode) bool  { return op >= verbs.OpAtomicCmpAndSwp }

// dataKind is the kind of the request's fragments.
func (r *sendSlot) dataKind() kind {
	if r.plain {
		return kindPlain
	}
	return kindData
}

// fail notes an error of the request. The first one counts.
func (r *sendSlot) fail(status verbs.Status, vendor uint32) {
	if r.status == verbs.StatusSuccess {
		r.status, r.vendor = status, vendor
	}
}

// flush ends one thing that the request waited for without success.
func (r *sendSlot) flush() {
	r.pending--
	r.fail(verbs.StatusWRFlushErr, 0)
}
