package ibverbx

import (
	"fmt"
	"slices"

	"ibverbx/internal/counter"
	"ibverbx/internal/ring"
	"ibverbx/verbs"
)

// sender is the sending half of a VirtualQP. It stores requests in its ring, assigns them to lanes
// (send_dispatch.go), rings doorbells (send_doorbell.go) and reports completed requests.
type sender struct {
	setup    *setup
	clock    *cachedClock
	failover *failover

	sends sendRing // outstanding requests
	// inline holds Config.MaxInline bytes per outstanding request; nil before the first inline request.
	inline  []byte
	records records         // records of Tally
	wire    [8]verbs.Opcode // opcode of a request's fragments, by the request's opcode
	// picker chooses the lanes of fragments.
	picker picker

	inflight    int // number of entries in all ledgers
	messages    int // number of entries that are SENDs or atomics
	dueNotifies int // number of unsent notifications of Spray
	// uncovered holds the lanes that have written to the peer's memory since the last notification.
	uncovered laneSet
	staged    []*lane        // lanes with entries that wait for the doorbell
	chain     []verbs.SendWR // buffer for the physical requests of a doorbell
	// brokenLane is a lane that became unusable, or nil. The end of dispatch handles it.
	brokenLane *lane
	brokenErr  error

	failureReported bool            // a failed request was reported
	posted          counter.Counter // accepted requests
	ended           counter.Counter // completed requests
	highWater       counter.Counter // maximum number of outstanding requests
}

// post accepts requests into the ring and dispatches them.
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

// storePlain stores a plain request.
func (s *sender) storePlain(r *sendSlot, wr *SendWR) {
	e, m, u := &wr.SGE[0], wr.Remote, s.setup
	g := e.Region
	r.fill(wr, s.wire[wr.Opcode&7], e.Length, u.fragmentSize(wr, e.Length), g.addr+e.Offset, m.Addr+wr.RemoteOffset)
	r.imm = wr.Imm
	u.setKeys(&r.keys, g, m)
}

// storeOther validates any other request and stores it in the slot at posted.
func (s *sender) storeOther(wr *SendWR) error {
	u := s.setup
	length, partial, err := u.check(wr)
	if err != nil {
		return err
	}
	r := s.sends.slot(s.sends.posted)
	r.fill(wr, s.wire[wr.Opcode&7], uint32(length), u.fragmentSize(wr, uint32(length)), 0, 0)
	r.plain, r.imm, r.numSGE, r.compareAdd, r.swap, r.sge = false, wr.Imm, wr.NumSGE, wr.CompareAdd, wr.Swap, wr.SGE
	if !isMessage(wr.Opcode) && length > 0 {
		r.target = wr.Remote.Addr + wr.RemoteOffset
		u.setKeys(&r.keys, nil, wr.Remote)
		partial = partial || slices.Contains(wr.Remote.RKeys[:u.remoteRails], 0)
	}
	r.partial = partial
	switch {
	case wr.Flags&verbs.SendInline != 0:
		s.copyInline(wr)
	case wr.NumSGE == 1 && length > 0 && !partial:
		e := &wr.SGE[0]
		r.plain, r.local = true, e.Region.addr+e.Offset
		u.setKeys(&r.keys, e.Region, nil)
	}
	if partial {
		return s.checkPartial(r)
	}
	return nil
}

// copyInline copies an inline request's bytes, because dispatch may happen after the post.
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

func (s *sender) inlineOf(seq uint32) []byte {
	size := s.setup.cfg.MaxInline
	return s.inline[int(s.sends.index(seq))*size:][:size]
}

// completed handles the completion of a lane's send request. RC completes in order, so all earlier entries have
// succeeded, including unsignaled ones.
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
		// This entry is in doubt, and so is everything behind the first failure.
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

// firstRefusal reports whether the peer refused a lane's oldest entry for the first time. A single NAK may be forged:
// with failover it costs the lane, and another lane retries the request. A second refusal is the program's error. So
// is the refusal of a SEND or atomic, which may have had an effect.
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

// retire removes a lane's oldest n entries, which have completed, and decrements pending of their requests.
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

// report writes the completions of requests in posting order and returns their number. Unsignaled successes are
// skipped.
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

// afterFailure flushes a notified request behind a failed one even if all of it was acknowledged: its receiver is
// notified in order, and thus never.
func (s *sender) afterFailure(r *sendSlot) {
	if r.status != verbs.StatusSuccess {
		s.failureReported, s.failover.errShown = true, true
	} else if s.failureReported && r.op == verbs.OpRDMAWriteWithImm {
		r.fail(verbs.StatusWRFlushErr, 0)
	}
}

// flush fails everything that no NIC has: staged entries, undispatched requests and unsent notifications.
func (s *sender) flush() {
	for _, l := range s.setup.all {
		for l.tail != l.posted {
			e := l.unstage()
			s.inflight--
			if e.kind() == kindControl { // a marker belongs to no request
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

// needsMarker reports whether an unsignaled tail could not be marked yet.
func (s *sender) needsMarker() bool {
	for _, l := range s.setup.all {
		if l.unsignaledTail && !l.idle() {
			return true
		}
	}
	return false
}

// sendRing holds the outstanding requests. They enter and are reported in order, so they form a window of sequence
// numbers, and a request's slot is its number modulo the length of the ring:
//
//	reported <= dispatched <= posted
//
// The request at dispatched may be dispatched in part. The ring starts small and grows up to depth. Other data of a
// request, such as its record, is found by its index: its number modulo depth.
type sendRing struct {
	// slots is the ring. Its length is a power of two, at most depth.
	slots      []sendSlot
	depth      uint32 // Config.SendDepth, a power of two
	reported   uint32 // oldest request not yet reported to the user
	dispatched uint32 // oldest request not yet dispatched completely
	posted     uint32 // next request
}

// sendSlot is one request. A plain request on one or two rails only needs the first 64 bytes. They do not
// contain pointers, so filling them avoids write barriers.
type sendSlot struct {
	id     uint64
	local  uint64 // local address of a plain request
	target uint64 // address at the peer
	length uint32
	sent   uint32 // number of dispatched bytes
	// pending counts what the request waits for: its fragments on lanes, plus one while a part is undispatched, plus
	// one while a notification is due. At zero it has completed.
	pending uint32
	cut     uint32 // fragment size in bytes
	op      verbs.Opcode
	wire    verbs.Opcode // opcode of the fragments
	flags   verbs.SendFlags
	status  verbs.Status
	plain   bool // contiguous memory, neither inline nor empty
	started bool // dispatched at least in part
	// notifyDue is set while the notification of Spray is unsent. sender.dueNotifies counts these requests.
	notifyDue bool
	// refused is set once the peer has refused a fragment, with failover.
	refused bool
	keys    [MaxRails]keyPair // memory keys by rail

	imm        uint32
	numSGE     uint8  // unless plain
	doubt      bool   // a failed atomic may have been executed
	partial    bool   // not plain, and without a key for some rail
	vendor     uint32 // vendor error of a failed request
	deadline   int64  // with Config.Control only
	compareAdd uint64
	swap       uint64
	sge        [MaxSGE]SGE // unless plain
	_          [8]byte     // pads to 256 bytes, so that slots do not share cache lines
}

// keyPair holds the key of the local memory on a local rail, and of the remote memory on the peer's rail with the
// same index.
type keyPair struct{ local, remote uint32 }

func (r *sendRing) slot(seq uint32) *sendSlot {
	s := r.slots
	return &s[int(seq)&(len(s)-1)]
}

// index returns a sequence number modulo depth, as stored in ledgers.
func (r *sendRing) index(seq uint32) uint16 { return uint16(seq & (r.depth - 1)) }

// of returns the slot of an entry's request.
func (r *sendRing) of(e *entry) *sendSlot { return r.slot(uint32(e.slot())) }

// grow enlarges the ring for n outstanding requests, at most depth.
func (r *sendRing) grow(n int) {
	larger := sendRing{slots: make([]sendSlot, ring.CeilPow2(n))}
	for seq := r.reported; seq != r.posted; seq++ {
		*larger.slot(seq) = *r.slot(seq)
	}
	r.slots = larger.slots
}

// oldest returns the oldest incomplete request; ok is false if all have completed.
func (r *sendRing) oldest() (seq uint32, ok bool) {
	for seq = r.reported; seq != r.posted; seq++ {
		if r.slot(seq).pending != 0 {
			return seq, true
		}
	}
	return 0, false
}

// fill initializes the slot's first 64 bytes for a plain request, except for the keys. It is called once per request
// of a run and must be inlined.
func (r *sendSlot) fill(wr *SendWR, wire verbs.Opcode, length, cut uint32, local, target uint64) {
	r.id, r.local, r.target = wr.WRID, local, target
	r.length, r.sent, r.pending, r.cut = length, 0, 1, cut
	r.op, r.wire, r.flags, r.status = wr.Opcode, wire, wr.Flags, verbs.StatusSuccess
	r.plain, r.started, r.notifyDue, r.refused = true, false, false, false
}

// isMessage reports whether the request uses the message lane.
func (r *sendSlot) isMessage() bool { return isMessage(r.op) || isAtomic(r.op) }

func isMessage(op verbs.Opcode) bool { return op == verbs.OpSend || op == verbs.OpSendWithImm }
func isAtomic(op verbs.Opcode) bool  { return op >= verbs.OpAtomicCmpAndSwp }

// dataKind returns the kind of the request's fragments.
func (r *sendSlot) dataKind() kind {
	if r.plain {
		return kindPlain
	}
	return kindData
}

// fragments returns the number of fragments. The request must not be empty.
func (r *sendSlot) fragments() uint32 { return (r.length-1)/r.cut + 1 }

// fail records the request's first error.
func (r *sendSlot) fail(status verbs.Status, vendor uint32) {
	if r.status == verbs.StatusSuccess {
		r.status, r.vendor, r.doubt = status, vendor, false
	}
}

// flush fails one of the things that the request waits for.
func (r *sendSlot) flush() {
	r.pending--
	r.fail(verbs.StatusWRFlushErr, 0)
}

// carries reports whether the request has keys for a local and a remote rail.
func (r *sendSlot) carries(rail, remoteRail uint8) bool {
	if r.plain || !r.partial {
		return true
	}
	if r.flags&verbs.SendInline == 0 && !registered(r.sge[:r.numSGE], rail) {
		return false
	}
	return isMessage(r.op) || r.keys[remoteRail&(MaxRails-1)].remote != 0
}

// checkPartial returns an error if no lane can ever carry a partial request, because the two sides have registered
// its memory on different rails.
func (s *sender) checkPartial(r *sendSlot) error {
	lanes := s.setup.lanes
	switch {
	case isMessage(r.op):
		return nil // the message lane may move to another rail
	case isAtomic(r.op):
		lanes = []*lane{s.setup.messageLane}
	}
	if slices.ContainsFunc(lanes, func(l *lane) bool { return r.carries(l.recovery.home, l.recovery.remoteHome) }) {
		return nil
	}
	return fmt.Errorf("%w: no lane connects rails on which both sides have registered the memory", verbs.ErrDeviceFatal)
}
