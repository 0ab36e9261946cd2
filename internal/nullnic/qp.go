package nullnic

import "ibverbx/verbs"

// QP accepts work requests. By default it completes every signaled send immediately.
type QP struct {
	nic          *NIC
	num          uint32
	cfg          verbs.QPConfig
	state        verbs.QPState
	sends, recvs *CQ
	attr         verbs.QPAttr
	closed       bool

	// Doorbells counts calls of PostSend that accepted at least one request.
	Doorbells int
	// Overruns counts chains that did not fit in a held QP.
	Overruns int
	// Taken holds every send ever accepted by a held QP, in order.
	Taken []verbs.SendWR

	held  bool
	queue queue
	own   receives
	pool  *receives // own receives, or the SRQ's

	refuseAt  int // first refused position in the next chain, plus one; 0 disables it
	refuseErr error
	refusals  int // number of whole chains to refuse after that
	occupied  int // used slots of a held send queue

	peerGID verbs.GID
	peerQPN uint32
}

var _ verbs.QP = (*QP)(nil)

// RefuseAt makes the next PostSend refuse the request at position k of its chain, and all after it,
// with err. A negative k cancels it.
func (q *QP) RefuseAt(k int, err error) { q.refuseAt, q.refuseErr, q.refusals = max(k+1, 0), err, 0 }

// RefuseMore makes the QP refuse n whole chains after the one of RefuseAt.
func (q *QP) RefuseMore(n int) { q.refusals = n }

// complete writes a send completion. A failed one has garbage in every invalid field, as on
// hardware.
func (q *QP) complete(wr *verbs.SendWR, status verbs.Status) {
	wc := q.sends.push()
	if status != verbs.StatusSuccess {
		failWC(wc, wr.WRID, status, q.num)
		return
	}
	wc.WRID, wc.Status, wc.QPN, wc.Opcode, wc.ByteLen, wc.Flags = wr.WRID, status, q.num, wr.Opcode.WC(), 0, 0
}

// failWC makes wc a failed completion with only wr_id, status, qp_num and vendor_err valid. It is
// a separate function to keep the successful path short.
//
//go:noinline
func failWC(wc *verbs.WC, id uint64, status verbs.Status, qpn uint32) {
	*wc = verbs.WC{
		WRID: id, Status: status, QPN: qpn, VendorErr: 0xbad,
		Opcode: 0x7f, Flags: 0xff, SL: 0xff, ByteLen: 0xdeadbeef, Imm: 0xdeadbeef,
		SrcQPN: 0xdeadbeef, SLID: 0xdead, PKeyIndex: 0xdead, Timestamp: 0xdeadbeef,
	}
}

// flush flushes all outstanding requests, in order.
func (q *QP) flush() {
	q.state = verbs.StateErr
	q.flushSends()
	q.flushRecvs()
}

// Num implements verbs.QP.
func (q *QP) Num() uint32 { return q.num }

// Type implements verbs.QP.
func (q *QP) Type() verbs.QPType { return q.cfg.Type }

// State implements verbs.QP.
func (q *QP) State() verbs.QPState { return q.state }

// Modify implements verbs.QP. It only checks the transition and stores the attributes.
func (q *QP) Modify(attr verbs.QPAttr, mask verbs.QPAttrMask) error {
	if err := verbs.CheckTransition(q.cfg.Type, q.state, attr.State, mask); err != nil {
		return err
	}
	q.attr, q.state = attr, attr.State
	switch attr.State {
	case verbs.StateRTR:
		q.peerGID, q.peerQPN = attr.AH.DGID, attr.DestQPN
	case verbs.StateErr:
		q.keepLate()
		q.flush()
	case verbs.StateReset:
		q.queue = queue{taken: q.queue.taken, chains: q.queue.chains, repeat: q.queue.repeat}
		q.own = receives{}
		q.occupied = 0
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
	attr := verbs.ConnectAttr(local, remote, 1, 0)
	q.cfg.Path.Apply(&attr)
	return verbs.ConnectWith(q, attr)
}

// PostSend implements verbs.QP.
func (q *QP) PostSend(wrs []verbs.SendWR) (int, error) {
	take, err := len(wrs), error(nil)
	if q.refuseAt > 0 && q.refuseAt <= len(wrs) {
		take, err = q.refuse(q.refuseAt - 1)
	}
	if q.state != verbs.StateRTS && q.state != verbs.StateErr {
		return 0, verbs.ErrState
	}
	if q.held {
		return q.hold(wrs, take, err)
	}
	if take > 0 {
		q.Doorbells++
	}
	if q.state == verbs.StateRTS {
		q.sends.succeed(q.num, wrs[:take])
		return take, err
	}
	for i := range wrs[:take] {
		q.complete(&wrs[i], verbs.StatusWRFlushErr)
	}
	return take, err
}

// refuse refuses a chain from position k on, and decides whether to refuse the next one.
func (q *QP) refuse(k int) (take int, err error) {
	if q.refuseAt = 0; q.refusals > 0 {
		q.refuseAt = 1
		q.refusals--
	}
	return k, q.refuseErr
}

// Close implements verbs.QP.
func (q *QP) Close() error {
	q.closed = true
	return nil
}

// Closed reports whether Close was called.
func (q *QP) Closed() bool { return q.closed }

// SendCQ returns the CQ of the QP's sends.
func (q *QP) SendCQ() *CQ { return q.sends }
