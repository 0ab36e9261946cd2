package ibverbx

import (
	"fmt"
	"slices"

	"ibverbx/internal/counter"
	"ibverbx/internal/ring"
	"ibverbx/verbs"
)

// sender is the sending half of a VirtualQP. It takes requests into its ring, hands them to lanes
// (send_dispatch.go), rings doorbells (send_doorbell.go) and reports requests that have ended.
type sender struct {
	setup    *setup
	clock    *cachedClock
	failover *failover

	sends sendRing // the outstanding requests
	// inline has Config.MaxInline bytes for every request that can be outstanding; nil before the first inline
	// request.
	inline  []byte
	records records         // those of Tally
	wire    [8]verbs.Opcode // the opcode of a request's fragments, by the opcode of the request
	// picker chooses the lanes of fragments.
	picker picker

	inflight    int // counts the entries in the ledgers of all lanes
	messages    int // counts the entries that are SENDs or atomics
	dueNotifies int // counts the notifications of Spray that were not sent
	// uncovered has the lanes that carried bytes to the peer's memory since the last notification.
	uncovered laneSet
	staged    []*lane        // the lanes with requests that wait for the doorbell
	chain     []verbs.SendWR // where the physical requests of a doorbell are rendered
	// brokenLane is a lane that cannot be used any more; nil if there is none. The end of dispatch
	// handles it.
	brokenLane *lane
	brokenErr  error // why brokenLane cannot be used

	failureReported bool            // a failed request was reported
	posted          counter.Counter // counts the requests that were taken
	ended           counter.Counter // counts the requests that have ended
	highWater       counter.Counter // the highest number of requests that were outstanding at once
}

// post takes requests into the ring and dispatches.
func (s *sender) post(wrs []SendWR) (n int, err error) {
	r, u := &s.sends, s.setup
	outstanding := int(r.posted - r.reported)
	take := min(len(wrs), int(r.depth)-outstanding)
	if outstanding+take > len(r.slots) {
		r.grow(outstanding + take)
	}
	for n < take {
		if r.dispatched == r.posted {
			if k := s.postRun(wrs[n:take]); k > 0 {
				n += k
				continue
			}
		}
		wr := &wrs[n]
		if u.leadingPlain(wrs[n:n+1]) == 1 {
			s.storePlain(r.slot(r.posted), wr)
		} else if err = s.storeOther(wr); err != nil {
			err = u.opError("post send", fmt.Errorf("request %d of the chain: %w", n, err))
			break
		}
		r.posted++
		n++
	}
	if u.cfg.Control != nil {
		s.setDeadlines(uint32(n))
	}
	s.posted.Add(uint64(n))
	s.highWater.Raise(uint64(r.posted - r.reported))
	s.dispatch()
	if err == nil && n < len(wrs) {
		err = verbs.ErrQueueFull
	}
	return n, err
}

// setDeadlines sets the deadline of the last n requests.
func (s *sender) setDeadlines(n uint32) {
	s.clock.tick()
	deadline := s.failover.watchdog.deadline()
	for seq := s.sends.posted - n; seq != s.sends.posted; seq++ {
		s.sends.slot(seq).deadline = deadline
	}
	if f := s.failover; !f.watchdog.probing && n > 0 && f.state == stateConnected {
		f.watchRequests()
		f.schedule()
	}
}

// storePlain puts a plain request into a slot.
func (s *sender) storePlain(r *sendSlot, wr *SendWR) {
	e, m, u := &wr.SGE[0], wr.Remote, s.setup
	g := e.Region
	r.fill(wr, s.wire[wr.Opcode&7], e.Length, u.fragmentSize(wr, e.Length), g.addr+e.Offset, m.Addr+wr.RemoteOffset)
	r.imm = wr.Imm
	u.setKeys(&r.keys, g, m)
}

// storeOther checks a request in full and puts it into the slot at posted.
func (s *sender) storeOther(wr *SendWR) error {
	u := s.setup
	length, err := u.check(wr)
	if err != nil {
		return err
	}
	r := s.sends.slot(s.sends.posted)
	r.fill(wr, s.wire[wr.Opcode&7], uint32(length), u.fragmentSize(wr, uint32(length)), 0, 0)
	r.plain, r.imm, r.numSGE, r.compareAdd, r.swap, r.sge = false, wr.Imm, wr.NumSGE, wr.CompareAdd, wr.Swap, wr.SGE
	r.partial = u.isPartial(wr, length)
	if !isMessage(wr.Opcode) && length > 0 {
		r.target = wr.Remote.Addr + wr.RemoteOffset
		u.setKeys(&r.keys, nil, wr.Remote)
	}
	switch {
	case wr.Flags&verbs.SendInline != 0:
		s.copyInline(wr)
	case wr.NumSGE == 1 && length > 0 && !r.partial:
		e := &wr.SGE[0]
		r.plain, r.local = true, e.Region.addr+e.Offset
		u.setKeys(&r.keys, e.Region, nil)
	}
	if r.partial {
		return s.checkPartial(r)
	}
	return nil
}

// copyInline copies the bytes of an inline request, because dispatch may come after the post.
func (s *sender) copyInline(wr *SendWR) {
	if s.inline == nil {
		s.inline = make([]byte, int(s.sends.depth)*s.setup.cfg.MaxInline)
	}
	dst := s.inlineOf(s.sends.posted)
	for i := range wr.NumSGE {
		e := &wr.SGE[i]
		dst = dst[copy(dst, e.Region.Bytes()[e.Offset:][:e.Length]):]
	}
}

// inlineOf returns the inline bytes of a request.
func (s *sender) inlineOf(seq uint32) []byte {
	size := s.setup.cfg.MaxInline
	return s.inline[int(s.sends.index(seq))*size:][:size]
}

// completed takes the completion of a send request of a lane. Its tag names an entry of the ledger.
// RC completes in order, so the entries before it have succeeded, also those that did not ask for a
// completion.
func (s *sender) completed(l *lane, wc *verbs.WC, t tag) {
	before := t.entry() - l.head
	if !l.owns(t) || before >= l.posted-l.head {
		s.setup.cq.countStale(l)
		return
	}
	if wc.Status == verbs.StatusSuccess {
		s.retire(l, before+1)
		return
	}
	if !l.recovery.failing {
		s.retire(l, before)
	}
	if l.recovery.state != laneUp || s.failover.survives(l, wc.Status) || s.firstRefusal(l, wc.Status) {
		// This entry is in doubt, and so is everything after the first failure.
		l.recovery.failing, l.recovery.drained = true, t.entry()+1
		s.failover.requestFailed(l, wc.Status)
		return
	}
	if e := l.at(l.head); e.kind() != kindControl {
		s.sends.of(e).fail(wc.Status, wc.VendorErr)
	}
	s.retire(l, 1)
	s.failover.failed(l, wc.Status)
}

// firstRefusal reports whether the peer refused the oldest entry of a lane, for the first time. A single NAK may
// be forged: with failover it costs the lane, and another lane tries the request again. A second refusal
// of the same request is the program's error. So is that of a SEND or atomic, which may have had an effect.
func (s *sender) firstRefusal(l *lane, status verbs.Status) bool {
	if !s.failover.recovers() || (status != verbs.StatusRemAccessErr && status != verbs.StatusRemInvReqErr && status != verbs.StatusRemOpErr) {
		return false
	}
	e := l.at(l.head)
	if e.kind() > kindRecord {
		return false
	}
	r := s.sends.of(e)
	first := !r.refused
	r.refused = true
	return first
}

// retire removes the oldest n entries of a lane, which have ended, and counts them off their requests.
func (s *sender) retire(l *lane, n uint32) {
	slots, ledger, head, bytes := s.sends.slots, l.ledger, l.head, uint64(0)
	for end := head + n; head != end; head++ {
		e := &ledger[int(head)&(len(ledger)-1)]
		h := e.head
		if k := kind(h >> 16); k >= kindMessage {
			if k == kindControl {
				continue
			}
			s.messages--
		}
		slots[int(uint16(h))&(len(slots)-1)].pending--
		bytes += uint64(e.bytes)
	}
	l.head = head
	l.bytes -= bytes
	s.inflight -= int(n)
	s.picker.ended += uint64(n)
	if s.picker.policy == TwoChoices {
		s.picker.measure(l, bytes)
	}
}

// report writes the completions of requests that have ended, in posting order, and returns how many
// it wrote. Unsignaled successes have no completion.
func (s *sender) report(dst []WC) (n int) {
	r, owner, failed := &s.sends, s.setup.owner, s.failover.err != nil
	first := r.reported
	for r.reported != r.posted {
		one := r.slot(r.reported)
		if one.pending != 0 {
			break
		}
		if one.status == verbs.StatusSuccess && one.flags&verbs.SendSignaled == 0 {
			r.reported++
			continue
		}
		if n == len(dst) {
			break
		}
		wc := &dst[n]
		if failed {
			s.afterFailure(one)
		}
		wc.WRID, wc.QP, wc.Status, wc.VendorErr = one.id, owner, one.status, 0
		wc.Opcode, wc.Flags, wc.ByteLen, wc.Imm = one.op.WC(), WCHasLength, one.length, 0
		if one.status != verbs.StatusSuccess {
			wc.VendorErr = one.vendor
			if one.doubt {
				wc.Flags |= WCInDoubt
			}
		}
		n++
		r.reported++
	}
	s.ended.Add(uint64(r.reported - first))
	return n
}

// close drops the ring. Outstanding requests end without a completion.
func (s *sender) close() {
	s.ended.Add(uint64(s.sends.posted - s.sends.reported))
	s.sends = sendRing{}
}

// afterFailure flushes a notified request behind one that failed, although all of it may have been
// acknowledged: its receiver, which is notified in order, never learns of it.
func (s *sender) afterFailure(r *sendSlot) {
	if r.status != verbs.StatusSuccess {
		s.failureReported, s.failover.errShown = true, true
	} else if s.failureReported && r.op == verbs.OpRDMAWriteWithImm {
		r.fail(verbs.StatusWRFlushErr, 0)
	}
}

// flush ends what no NIC has: staged entries, requests that were not handed over, and notifications
// that were not sent.
func (s *sender) flush() {
	for _, l := range s.setup.all {
		for l.tail != l.posted {
			e := l.unstage()
			s.inflight--
			if e.kind() == kindControl { // a mark belongs to no request
				continue
			}
			if e.kind() >= kindMessage {
				s.messages--
			}
			s.sends.of(e).flush()
		}
		l.listed = false
		s.postMarker(l)
	}
	s.staged = s.staged[:0]
	r := &s.sends
	for ; r.dispatched != r.posted; r.dispatched++ {
		r.slot(r.dispatched).flush()
	}
	for seq := r.reported; s.dueNotifies > 0 && seq != r.posted; seq++ {
		if one := r.slot(seq); one.notifyDue {
			one.notifyDue = false
			one.flush()
			s.dueNotifies--
		}
	}
}

// needsMarker reports whether a lane still has requests that ended without a completion, and could not
// be marked yet.
func (s *sender) needsMarker() bool {
	for _, l := range s.setup.all {
		if l.unsignaledTail && !l.idle() {
			return true
		}
	}
	return false
}

// sendRing holds the requests that are outstanding. They enter in order and are reported in order,
// so those alive are a window of sequence numbers, and the slot of a request is its number modulo
// the size of the ring:
//
//	reported <= dispatched <= posted
//
// The request at dispatched may be handed to lanes in part. The ring begins small and grows to depth with
// the number of requests that are outstanding. What else belongs to a request, such as its record, is found
// by its index, which is its number modulo depth.
type sendRing struct {
	// slots is the ring. Its length is a power of two, at most depth.
	slots      []sendSlot
	depth      uint32 // Config.SendDepth, a power of two
	reported   uint32 // the number of the oldest request that was not reported to the user
	dispatched uint32 // the number of the oldest request that was not wholly handed to lanes
	posted     uint32 // the number of the next request
}

// sendSlot is one request. A plain request on one or two rails needs only the first 64 bytes on its
// way from the post to the report. These hold no pointer, so that writing them needs no write
// barrier.
type sendSlot struct {
	id     uint64
	local  uint64 // the address of the bytes of a plain request
	target uint64 // the address at the peer
	length uint32
	sent   uint32 // the number of bytes handed to lanes
	// pending counts what the request waits for: the fragments that lanes have, 1 for the rest
	// that no lane has, and 1 for a notification that was not sent. At 0 the request has ended.
	pending uint32
	cut     uint32 // the size of a fragment in bytes
	op      verbs.Opcode
	wire    verbs.Opcode // the opcode of the fragments
	flags   verbs.SendFlags
	status  verbs.Status
	plain   bool // the bytes are one piece of memory, neither inline nor empty
	started bool // a part of the request was handed to lanes
	// notifyDue says that the notification of Spray was not sent. It is counted in sender.dueNotifies.
	notifyDue bool
	// refused says that the peer refused a fragment of the request, with failover.
	refused bool
	keys    [MaxRails]keyPair // the memory keys by rail

	imm        uint32
	numSGE     uint8  // of a request that is not plain
	doubt      bool   // a failed atomic may have been executed
	partial    bool   // a request that is not plain lacks a key on some rail
	vendor     uint32 // the vendor error of a request that failed
	deadline   int64  // when the request must have ended; with Config.Control only
	compareAdd uint64
	swap       uint64
	sge        [MaxSGE]SGE // the pieces of a request that is not plain
	_          [8]byte     // makes 256 bytes, so that no slot shares a cache line
}

// keyPair is the key of the local memory on one of our rails, and of the remote memory on the
// peer's rail of the same index.
type keyPair struct{ local, remote uint32 }

// slot returns the slot of a sequence number.
func (r *sendRing) slot(seq uint32) *sendSlot {
	s := r.slots
	return &s[int(seq)&(len(s)-1)]
}

// index is the index of a sequence number, as ledgers keep it.
func (r *sendRing) index(seq uint32) uint16 { return uint16(seq & (r.depth - 1)) }

// of returns the slot of the request that an entry belongs to.
func (r *sendRing) of(e *entry) *sendSlot { return r.slot(uint32(e.slot())) }

// grow makes room for n outstanding requests, at most depth.
func (r *sendRing) grow(n int) {
	larger := sendRing{slots: make([]sendSlot, ring.CeilPow2(n))}
	for seq := r.reported; seq != r.posted; seq++ {
		*larger.slot(seq) = *r.slot(seq)
	}
	r.slots = larger.slots
}

// oldest returns the number of the oldest request that has not ended, if there is one.
func (r *sendRing) oldest() (seq uint32, ok bool) {
	for seq = r.reported; seq != r.posted; seq++ {
		if r.slot(seq).pending != 0 {
			return seq, true
		}
	}
	return 0, false
}

// fill sets the first 64 bytes of the slot, except for the keys, for a plain request. Runs call it once per request, so it must be
// inlined.
func (r *sendSlot) fill(wr *SendWR, wire verbs.Opcode, length, cut uint32, local, target uint64) {
	r.id, r.local, r.target = wr.WRID, local, target
	r.length, r.sent, r.pending, r.cut = length, 0, 1, cut
	r.op, r.wire, r.flags, r.status = wr.Opcode, wire, wr.Flags, verbs.StatusSuccess
	r.plain, r.started, r.notifyDue, r.refused = true, false, false, false
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

// fragments is how many fragments the request is cut into. The request is not empty.
func (r *sendSlot) fragments() uint32 { return (r.length-1)/r.cut + 1 }

// fail notes an error of the request. The first one counts.
func (r *sendSlot) fail(status verbs.Status, vendor uint32) {
	if r.status == verbs.StatusSuccess {
		r.status, r.vendor, r.doubt = status, vendor, false
	}
}

// flush ends one thing that the request waited for without success.
func (r *sendSlot) flush() {
	r.pending--
	r.fail(verbs.StatusWRFlushErr, 0)
}

// isPartial reports whether a request lacks a key on some rail.
func (u *setup) isPartial(wr *SendWR, length uint64) bool {
	if length == 0 {
		return false
	}
	if wr.Flags&verbs.SendInline == 0 {
		for i := range wr.NumSGE {
			if wr.SGE[i].Length > 0 && wr.SGE[i].Region.complete.Load() == nil {
				return true
			}
		}
	}
	return !isMessage(wr.Opcode) && slices.Contains(wr.Remote.RKeys[:u.remoteRails], 0)
}

// carries reports whether a request has the keys for a local and a remote rail.
func (r *sendSlot) carries(rail, remoteRail uint8) bool {
	if r.plain || !r.partial {
		return true
	}
	if r.flags&verbs.SendInline == 0 && !registered(r.sge[:r.numSGE], rail) {
		return false
	}
	return isMessage(r.op) || r.keys[remoteRail&(MaxRails-1)].remote != 0
}

// checkPartial returns an error if no lane can ever carry a partial request: its memory is registered on different rails at the two ends.
func (s *sender) checkPartial(r *sendSlot) error {
	lanes := s.setup.lanes
	switch {
	case isMessage(r.op):
		return nil // the message lane may go to another rail
	case isAtomic(r.op):
		lanes = []*lane{s.setup.messageLane}
	}
	if slices.ContainsFunc(lanes, func(l *lane) bool { return r.carries(l.recovery.home, l.recovery.remoteHome) }) {
		return nil
	}
	return fmt.Errorf("%w: the memory of the two ends is registered on no lane's rails", verbs.ErrDeviceFatal)
}
