package ibverbx

import (
	"fmt"

	"ibverbx/verbs"
)

// completed takes a completion of a lane. Its tag says which entry of the ledger it ends;
// RC completes in order, so the entries before it have ended well, asked or not.
func (q *VirtualQP) completed(l *lane, wc *verbs.WC) {
	t := tag(wc.WRID)
	entry := t.entry()
	if t.kind() == kindRecv {
		q.recvCompleted(l, wc, t)
		return
	}
	inFlight := l.tail - uint32(len(l.stage)) - l.head
	if t.generation() != l.generation || t.lane() != l.index || entry-l.head >= inFlight {
		q.cq.stats.Stale++
		return
	}
	for l.head != entry {
		q.endFragment(l, verbs.StatusSuccess, 0)
	}
	q.endFragment(l, wc.Status, wc.VendorErr)
	if wc.Status != verbs.StatusSuccess {
		q.failed(l, wc.Status)
	}
}

// endFragment takes the oldest entry out of a lane's ledger.
func (q *VirtualQP) endFragment(l *lane, status verbs.Status, vendor uint32) {
	e := l.ledger[int(l.head)&(len(l.ledger)-1)]
	l.head++
	if e.control {
		return
	}
	if e.numbered {
		q.scheme.acked(e.number)
	}
	l.bytes -= uint64(e.bytes)
	s := q.slot(e.seq)
	s.frags--
	if status != verbs.StatusSuccess {
		s.fail(status, vendor)
	}
	q.settle(s)
}

// settle takes a request that has ended out of the count of open ones.
func (q *VirtualQP) settle(s *sendSlot) {
	if s.open && s.ended() {
		s.open = false
		q.open[kindIndex(s)]--
	}
}

func kindIndex(s *sendSlot) int {
	if s.isMessage() {
		return 1
	}
	return 0
}

// reportable reports whether something waits to be told: the oldest request, or a
// receive.
func (q *VirtualQP) reportable() bool {
	return (q.reported != q.posted && q.slot(q.reported).ended()) || q.doneHead != q.doneTail
}

// report writes the completions of requests that have ended, in posting order, and
// returns how many it wrote. Unsignaled successes are passed over.
func (q *VirtualQP) report(dst []WC) (n int) {
	n = q.reportReceives(dst)
	for q.reported != q.posted {
		s := q.slot(q.reported)
		if !s.ended() {
			return n
		}
		if s.status == verbs.StatusSuccess && s.wr.Flags&verbs.SendSignaled == 0 {
			q.reported++
			continue
		}
		if n == len(dst) {
			return n
		}
		wc := &dst[n]
		wc.ID, wc.QP, wc.Status, wc.VendorErr = s.wr.ID, q, s.status, s.vendor
		wc.Opcode, wc.Flags, wc.ByteLen, wc.Imm = s.wr.Opcode.WC(), WCHasLength, s.length, 0
		n++
		q.reported++
	}
	return n
}

// failed ends the VirtualQP because a request of a lane failed.
func (q *VirtualQP) failed(l *lane, status verbs.Status) {
	if q.err == nil {
		q.fail(l, fmt.Errorf("%s: %s", status, status.Cause()))
	}
}

// fail ends the VirtualQP: the error is visible at once, every lane stops, and what is
// outstanding is flushed. Fragments that are with a NIC end when it says so, so that no
// buffer is touched after its completion.
func (q *VirtualQP) fail(l *lane, cause error) {
	if q.err != nil {
		return
	}
	q.err = q.opError(fmt.Sprintf("lane %d on rail %d (%s)", l.index, l.rail, q.rails.rails[l.rail].name), cause)
	q.state = stateFailed
	for _, l := range q.all {
		// A QP that cannot go to ERR is there already, or gone.
		_ = l.qp.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.AttrState)
	}
	q.flushWaiting()
}

// unmarked reports whether a lane could not be asked yet about requests that ended in
// silence.
func (q *VirtualQP) unmarked() bool {
	for _, l := range q.all {
		if l.silent && l.head != l.tail {
			return true
		}
	}
	return false
}

// flushWaiting ends what no NIC has: staged fragments, and requests that were not handed
// over.
func (q *VirtualQP) flushWaiting() {
	for _, l := range q.all {
		for range l.stage {
			l.tail--
			e := l.ledger[int(l.tail)&(len(l.ledger)-1)]
			l.bytes -= uint64(e.bytes)
			s := q.slot(e.seq)
			s.frags--
			s.fail(verbs.StatusWRFlushErr, 0)
			q.settle(s)
		}
		l.stage, l.listed = l.stage[:0], false
		l.mark()
	}
	q.staged = q.staged[:0]
	for ; q.dispatched != q.posted; q.dispatched++ {
		s := q.slot(q.dispatched)
		s.whole = true
		s.fail(verbs.StatusWRFlushErr, 0)
	}
	for seq := q.reported; seq != q.posted; seq++ {
		if s := q.slot(seq); s.owes { // its receiver will not be told
			s.owes = false
			s.fail(verbs.StatusWRFlushErr, 0)
			q.settle(s)
		}
	}
	q.flushNotifications()
	if q.reportable() || q.unmarked() {
		q.cq.touch(q)
	}
}
