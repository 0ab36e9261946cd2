package nullnic

import "ibverbx/verbs"

// QP takes work requests. Its zero settings complete every signaled send at once.
type QP struct {
	nic          *NIC
	num          uint32
	cfg          verbs.QPConfig
	state        verbs.QPState
	sends, recvs *CQ
	attr         verbs.QPAttr
	closed       bool

	// Doorbells counts calls of PostSend that took something.
	Doorbells int
	// Taken is every send that a held QP ever took, in order.
	Taken []verbs.SendWR

	held    bool
	posted  []verbs.SendWR // taken and not complete, while held
	waiting []verbs.RecvWR

	refuseAt  int // one more than the position in the next chain to refuse from, 0 for none
	refuseErr error
	limit     int // sends outstanding before the queue is full, 0 for no limit
}

var _ verbs.QP = (*QP)(nil)

// Hold makes the QP keep sends until Complete or Fail.
func (q *QP) Hold() { q.held = true }

// Limit makes the send queue full with n sends outstanding.
func (q *QP) Limit(n int) { q.limit = n }

// RefuseAt makes the next PostSend refuse the request at position k of its chain, and all
// after it, with err.
func (q *QP) RefuseAt(k int, err error) { q.refuseAt, q.refuseErr = k+1, err }

// Posted returns the sends that are outstanding on a held QP, oldest first.
func (q *QP) Posted() []verbs.SendWR { return q.posted }

// Waiting returns the receives that are posted, oldest first.
func (q *QP) Waiting() []verbs.RecvWR { return q.waiting }

// Complete ends the oldest n sends with success: a completion for each signaled one.
func (q *QP) Complete(n int) {
	for _, wr := range q.posted[:n] {
		if wr.Flags&verbs.SendSignaled != 0 || q.cfg.SignalAll {
			q.complete(&wr, verbs.StatusSuccess)
		}
	}
	q.posted = append(q.posted[:0], q.posted[n:]...)
}

// Fail ends the oldest send with a status and flushes everything behind it.
func (q *QP) Fail(status verbs.Status) {
	if len(q.posted) > 0 {
		q.complete(&q.posted[0], status)
		q.posted = append(q.posted[:0], q.posted[1:]...)
	}
	q.flush()
}

func (q *QP) flush() {
	q.state = verbs.StateErr
	for i := range q.posted {
		q.complete(&q.posted[i], verbs.StatusWRFlushErr)
	}
	q.posted = q.posted[:0]
	for _, wr := range q.waiting {
		*q.recvs.push() = verbs.WC{WRID: wr.WRID, Status: verbs.StatusWRFlushErr, QPN: q.num, Opcode: 0x7f}
	}
	q.waiting = q.waiting[:0]
}

// complete writes a send completion. In a failed one every field that is not valid holds
// rubbish, as on hardware.
func (q *QP) complete(wr *verbs.SendWR, status verbs.Status) {
	wc := q.sends.push()
	if status != verbs.StatusSuccess {
		*wc = verbs.WC{WRID: wr.WRID, Status: status, QPN: q.num, VendorErr: 0xbad, Opcode: 0x7f, ByteLen: 0xdeadbeef, Imm: 0xdeadbeef, Flags: 0xff}
		return
	}
	wc.WRID, wc.Status, wc.QPN, wc.Opcode, wc.ByteLen, wc.Flags = wr.WRID, status, q.num, wr.Opcode.WC(), 0, 0
}

// Receive completes the oldest posted receive with wc; WRID and QPN are filled in. It
// reports false if there is none: the sender would meet RNR.
func (q *QP) Receive(wc verbs.WC) bool {
	if len(q.waiting) == 0 {
		return false
	}
	wc.WRID, wc.QPN = q.waiting[0].WRID, q.num
	*q.recvs.push() = wc
	q.waiting = append(q.waiting[:0], q.waiting[1:]...)
	return true
}

// Num implements verbs.QP.
func (q *QP) Num() uint32 { return q.num }

// Type implements verbs.QP.
func (q *QP) Type() verbs.QPType { return q.cfg.Type }

// State implements verbs.QP.
func (q *QP) State() verbs.QPState { return q.state }

// Modify implements verbs.QP: it checks the transition and does as it is told.
func (q *QP) Modify(attr verbs.QPAttr, mask verbs.QPAttrMask) error {
	if err := verbs.CheckTransition(q.cfg.Type, q.state, attr.State, mask); err != nil {
		return err
	}
	q.attr, q.state = attr, attr.State
	switch attr.State {
	case verbs.StateErr:
		q.flush()
	case verbs.StateReset:
		q.posted, q.waiting = nil, nil
	default:
	}
	return nil
}

// Query implements verbs.QP.
func (q *QP) Query() (verbs.QPAttr, error) { return q.attr, nil }

// Endpoint implements verbs.QP.
func (q *QP) Endpoint() (verbs.Endpoint, error) {
	return verbs.Endpoint{QPN: q.num, GID: q.nic.gid, MTU: verbs.MTU4096, MaxRdAtomic: 16, MaxDestRdAtomic: 16}, nil
}

// Connect implements verbs.QP.
func (q *QP) Connect(remote verbs.Endpoint) error {
	if err := remote.Validate(); err != nil {
		return err
	}
	local, err := q.Endpoint()
	if err != nil {
		return err
	}
	return verbs.ConnectWith(q, verbs.ConnectAttr(local, remote, 1, 0))
}

// PostSend implements verbs.QP.
func (q *QP) PostSend(wrs []verbs.SendWR) (int, error) {
	take, err := len(wrs), error(nil)
	if q.refuseAt > 0 && q.refuseAt <= len(wrs) {
		take, err, q.refuseAt = q.refuseAt-1, q.refuseErr, 0
	}
	if q.limit > 0 && len(q.posted)+take > q.limit {
		take, err = max(q.limit-len(q.posted), 0), verbs.ErrQueueFull
	}
	if q.state != verbs.StateRTS && q.state != verbs.StateErr {
		return 0, verbs.ErrState
	}
	if take > 0 {
		q.Doorbells++
	}
	if q.held {
		q.posted = append(q.posted, wrs[:take]...)
		q.Taken = append(q.Taken, wrs[:take]...)
		if q.state == verbs.StateErr {
			q.flush()
		}
		return take, err
	}
	for i := range wrs[:take] {
		if wr := &wrs[i]; q.state == verbs.StateErr {
			q.complete(wr, verbs.StatusWRFlushErr)
		} else if wr.Flags&verbs.SendSignaled != 0 {
			q.complete(wr, verbs.StatusSuccess)
		}
	}
	return take, err
}

// PostRecv implements verbs.QP.
func (q *QP) PostRecv(wrs []verbs.RecvWR) (int, error) {
	room := q.cfg.MaxRecvWR - len(q.waiting)
	if room < len(wrs) {
		q.waiting = append(q.waiting, wrs[:room]...)
		return room, verbs.ErrQueueFull
	}
	q.waiting = append(q.waiting, wrs...)
	if q.state == verbs.StateErr {
		q.flush()
	}
	return len(wrs), nil
}

// Close implements verbs.QP.
func (q *QP) Close() error {
	q.closed = true
	return nil
}

// Closed reports whether Close was called.
func (q *QP) Closed() bool { return q.closed }
