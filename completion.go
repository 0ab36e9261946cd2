package ibverbx

import (
	"fmt"

	"ibverbx/verbs"
)

// completed takes a completion of a lane. Its tag says which entry of the ledger it ends;
// RC completes in order, so the entries before it have ended well, asked or not.
func (q *VirtualQP) completed(l *lane, wc *verbs.WC) {
	t := tag(wc.WRID)
	if t.kind() >= kindRecv {
		if t.kind() == kindRecv {
			q.recvCompleted(l, wc, t)
			return
		}
		if t.kind() == kindProbe {
			q.probed(l, wc, t)
			return
		}
	}
	before := t.entry() - l.head
	if t.generation() != l.generation || t.lane() != l.index || before >= l.posted-l.head {
		q.stale(l)
		return
	}
	if wc.Status == verbs.StatusSuccess {
		q.retire(l, before+1)
		return
	}
	if !l.life.failing {
		q.retire(l, before)
	}
	if l.life.state != laneUp || q.survives(l, wc.Status) {
		// In doubt, as is everything since the first that failed.
		l.life.failing, l.life.drained = true, t.entry()+1
		q.laneDown(l, statusError(wc.Status))
		return
	}
	if e := l.at(l.head); e.kind() != kindControl {
		q.sends[e.slot()].fail(wc.Status, wc.VendorErr)
	}
	q.retire(l, 1)
	q.failed(l, wc.Status)
}

// retire takes the oldest n entries out of a lane's ledger.
func (q *VirtualQP) retire(l *lane, n uint32) {
	sends, ledger, head := q.sends, l.ledger, l.head
	var bytes uint64
	for end := head + n; head != end; head++ {
		e := &ledger[int(head)&(len(ledger)-1)]
		h := e.head
		if k := kind(h >> 16); k >= kindMessage {
			if k == kindControl {
				continue
			}
			q.messages--
		}
		sends[uint16(h)].pending--
		bytes += uint64(e.bytes)
	}
	l.head = head
	l.bytes -= bytes
	q.inflight -= int(n)
	if q.cfg.Policy == TwoChoices {
		q.measure(l, bytes)
	}
}

// stale counts a completion that belongs to nothing in flight.
func (q *VirtualQP) stale(l *lane) {
	l.counts.Stale++
	q.cq.stats.Stale++
}

// reportable reports whether something waits to be told: the oldest request, or a
// receive.
func (q *VirtualQP) reportable() bool {
	return (q.reported != q.posted && q.slot(q.reported).pending == 0) || q.doneHead != q.doneTail
}

// report writes the completions of requests that have ended, in posting order, and
// returns how many it wrote. Unsignaled successes are passed over.
func (q *VirtualQP) report(dst []WC) (n int) {
	if q.doneHead != q.doneTail {
		n = q.reportReceives(dst)
	}
	for q.reported != q.posted {
		s := q.slot(q.reported)
		if s.pending != 0 {
			return n
		}
		if s.status == verbs.StatusSuccess && s.flags&verbs.SendSignaled == 0 {
			q.reported++
			continue
		}
		if n == len(dst) {
			return n
		}
		wc := &dst[n]
		if q.err != nil {
			q.afterFailure(s)
		}
		wc.WRID, wc.QP, wc.Status, wc.VendorErr = s.id, q, s.status, 0
		wc.Opcode, wc.Flags, wc.ByteLen, wc.Imm = s.op.WC(), WCHasLength, s.length, 0
		if s.status != verbs.StatusSuccess {
			wc.VendorErr = s.vendor
		}
		n++
		q.reported++
	}
	return n
}

// afterFailure makes a notified request behind one that failed end as flushed, although all
// of it may have been acknowledged: its receiver, who is told in order, never learns of it.
func (q *VirtualQP) afterFailure(s *sendSlot) {
	if s.status != verbs.StatusSuccess {
		q.broken = true
	} else if q.broken && s.op == verbs.OpRDMAWriteWithImm {
		s.fail(verbs.StatusWRFlushErr, 0)
	}
}

// failed ends the VirtualQP because a request of a lane failed.
func (q *VirtualQP) failed(l *lane, status verbs.Status) {
	if q.err == nil {
		q.fail(l, statusError(status))
	}
}

// statusError puts the status of a completion into words.
func statusError(status verbs.Status) error { return fmt.Errorf("%s: %s", status, status.Cause()) }

// fail ends the VirtualQP: the error is visible at once, every lane stops, and what is
// outstanding is flushed. Fragments that are with a NIC end when it says so, so that no
// buffer is touched after its completion.
func (q *VirtualQP) fail(l *lane, cause error) {
	if q.err != nil {
		return
	}
	q.err = q.opError(fmt.Sprintf("lane %d on rail %d (%s)", l.index, l.rail, q.rails.rails[l.rail].name), cause)
	q.state = stateFailed
	q.emptied = q.cq.barriers()
	q.cq.notice(Event{Kind: EventFailed, QP: q, Lane: int(l.index), Rail: int(l.rail), Err: q.err})
	for _, l := range q.all {
		if l.life.state != laneUp {
			q.abandon(l)
			continue
		}
		// A QP that cannot go to ERR is there already, or gone.
		_ = l.qp.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.AttrState)
	}
	q.tellReset()
	q.flushWaiting()
}

// unsettled reports whether a VirtualQP that has failed must be looked at again although
// nothing need come: a lane could not be asked yet about requests that ended in silence,
// or receives wait for what may still be in a CQ.
func (q *VirtualQP) unsettled() bool {
	for _, l := range q.all {
		if l.silent && l.head != l.tail {
			return true
		}
	}
	return q.shared != nil && q.notifyHead != q.notifyTo
}

// flushWaiting ends what no NIC has: staged fragments, and requests that were not handed
// over.
func (q *VirtualQP) flushWaiting() {
	for _, l := range q.all {
		for l.tail != l.posted {
			l.tail--
			e := l.at(l.tail)
			l.bytes -= uint64(e.bytes)
			q.inflight--
			if e.kind() >= kindMessage {
				q.messages--
			}
			s := &q.sends[e.slot()]
			s.pending--
			s.fail(verbs.StatusWRFlushErr, 0)
		}
		l.listed = false
		q.mark(l)
	}
	q.staged = q.staged[:0]
	for ; q.dispatched != q.posted; q.dispatched++ {
		s := q.slot(q.dispatched)
		s.pending--
		s.fail(verbs.StatusWRFlushErr, 0)
	}
	for seq := q.reported; q.owed > 0 && seq != q.posted; seq++ {
		if s := q.slot(seq); s.owes { // its receiver will not be told
			s.owes = false
			s.pending--
			q.owed--
			s.fail(verbs.StatusWRFlushErr, 0)
		}
	}
	q.flushNotifications()
	q.flushData()
	if q.reportable() || q.unsettled() {
		q.cq.touch(q)
	}
}
