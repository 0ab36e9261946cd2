package node

import (
	"fmt"
	"math"

	"ibverbx"
	"ibverbx/internal/opaque"
	"ibverbx/internal/ring"
	"ibverbx/internal/service"
	"ibverbx/verbs"
)

// queue holds a Peer's pending and posted operations. Its shard's lock guards it.
type queue struct {
	shard *shard
	// session is the current session; nil without one. Operations without Replay require it.
	session *session
	// qp is the session's VirtualQP; nil while connecting or parked.
	qp *ibverbx.VirtualQP
	// paused stops posting while the session is being parked.
	paused bool
	// broken stops posting after the VirtualQP has failed.
	broken bool
	// settled is set when a fragment has failed: earlier fragments have completed, the result of later ones is unknown.
	settled bool
	// blamed is the error of the operation whose fragment failed, rail the failed lane's rail. They are nil and -1 until known.
	blamed *RequestError
	rail   int
	// refuse fails all operations immediately unless nil.
	refuse error
	// closed makes refuse permanent.
	closed bool
	// incarnation identifies the process of the newest session.
	incarnation uint64

	// urgent holds the Flows whose next operation is short, bulk the others.
	urgent, bulk flowList
	// favored is set when the last fragment was urgent while others waited.
	favored bool
	// ops is the number of outstanding operations.
	ops int

	// ledger holds the posted, uncompleted fragments. A fragment's wr_id is its sequence number there.
	ledger ring.Ring[fragment]
	// depth is the capacity of the ledger.
	depth int
	// bytes is the size of the fragments in the ledger, window its limit for non-urgent operations.
	bytes, window int
	// unsignaled counts the fragments since the last signaled one, unsignaledBytes their bytes.
	unsignaled, unsignaledBytes int
	// flush requests a completion even if no fragment follows.
	flush bool
	// unposted counts completed notification receives not yet reposted.
	unposted int

	// next links queues with fragments to post (shard.ready); listed is set while linked.
	next   *queue
	listed bool
	counts counters
}

// flowList is a list of Flows, linked by FlowState.Next.
type flowList struct{ head, tail *service.Flow }

func (l *flowList) push(f *service.Flow) {
	flowState(f).Waiting, flowState(f).Next = true, nil
	if l.tail == nil {
		l.head = f
	} else {
		flowState(l.tail).Next = f
	}
	l.tail = f
}

func (l *flowList) pop() *service.Flow {
	f := l.head
	if l.head = flowState(f).Next; l.head == nil {
		l.tail = nil
	}
	flowState(f).Waiting, flowState(f).Next = false, nil
	return f
}

// remove unlinks a Flow, if it is in the list.
func (l *flowList) remove(f *service.Flow) {
	var rest flowList
	for l.head != nil {
		if other := l.pop(); other != f {
			rest.push(other)
		}
	}
	*l = rest
}

// stateOf returns this package's state of an operation.
func stateOf(op *service.Op) *service.State { return opaque.Open(&op.State) }

// flowState returns this package's state of a Flow.
func flowState(f *service.Flow) *service.FlowState { return opaque.Open(&f.State) }

func flowOf(op *service.Op) *service.Flow {
	if op.Flow != nil {
		return op.Flow
	}
	return &stateOf(op).Own
}

// add accepts a submitted operation.
func (q *queue) add(op *service.Op) {
	q.ops++
	q.counts.activity.Add(1)
	st := stateOf(op)
	st.Next, st.Block, st.Offset, st.DoneBlock, st.DoneOffset, st.Done, st.Flight = nil, 0, 0, 0, 0, 0, 0
	st.Queued, st.Canceled, st.Tried, st.Err = false, false, false, nil
	st.Bytes.Store(0)
	var err error
	st.Left, err = check(op)
	switch {
	case q.refuse != nil:
		q.end(op, q.refuse)
	case err != nil:
		q.end(op, err)
	case q.session == nil && !op.Replay, op.Session != 0 && (q.session == nil || op.Session != q.session.number):
		q.end(op, ErrLost)
	case op.Incarnation != 0 && op.Incarnation != q.incarnation:
		q.end(op, ErrRestarted)
	default:
		q.enqueue(op)
		q.schedule()
	}
}

// check validates an operation and returns its size in bytes.
func check(op *service.Op) (total uint64, err error) {
	for i := range op.Blocks {
		b := &op.Blocks[i]
		switch {
		case b.Opcode != verbs.OpRDMAWrite && b.Opcode != verbs.OpRDMARead:
			err = verbs.Invalidf("opcode %s", b.Opcode)
		case b.Length == 0:
		case b.Local == nil || b.Remote == nil:
			err = verbs.Invalidf("no memory")
		case b.LocalOffset > b.Local.Len() || b.Length > b.Local.Len()-b.LocalOffset:
			err = verbs.Invalidf("%d bytes at %d: the local region has %d", b.Length, b.LocalOffset, b.Local.Len())
		case b.RemoteOffset > b.Remote.Length || b.Length > b.Remote.Length-b.RemoteOffset:
			err = verbs.Invalidf("%d bytes at %d: the peer's region has %d", b.Length, b.RemoteOffset, b.Remote.Length)
		case total > math.MaxUint64-b.Length:
			err = verbs.Invalidf("more than 2^64 bytes in all")
		}
		if err != nil {
			return 0, fmt.Errorf("block %d: %w", i, err)
		}
		total += b.Length
	}
	if len(op.Blocks) == 0 {
		return 0, verbs.Invalidf("an operation without blocks")
	}
	if last := &op.Blocks[len(op.Blocks)-1]; op.Notify && (last.Opcode != verbs.OpRDMAWrite || last.Length > service.MaxNotify) {
		return 0, verbs.Invalidf("the last block cannot notify: %s of %d bytes", last.Opcode, last.Length)
	}
	return total, nil
}

// enqueue appends an operation to its Flow.
func (q *queue) enqueue(op *service.Op) {
	f := flowOf(op)
	stateOf(op).Next, stateOf(op).Queued = nil, true
	if flowState(f).Head == nil {
		flowState(f).Head = op
	} else {
		stateOf(flowState(f).Tail).Next = op
	}
	flowState(f).Tail = op
	q.list(f)
}

// list queues a Flow with operations for posting.
func (q *queue) list(f *service.Flow) {
	switch {
	case flowState(f).Waiting || flowState(f).Head == nil:
	case stateOf(flowState(f).Head).Left <= urgentBytes:
		q.urgent.push(f)
	default:
		q.bulk.push(f)
	}
}

// schedule queues q for posting on its shard.
func (q *queue) schedule() {
	switch {
	case q.listed || (q.urgent.head == nil && q.bulk.head == nil && !q.flush):
	case q.qp == nil:
		if q.session != nil {
			q.session.wake() // it may be parked
		}
	default:
		q.listed = true
		q.next, q.shard.ready = q.shard.ready, q
	}
}

// drop stops posting an operation. It fails with err once its posted fragments have completed.
func (q *queue) drop(op *service.Op, err error) {
	st := stateOf(op)
	if st.Queued {
		f := flowOf(op)
		q.urgent.remove(f)
		q.bulk.remove(f)
		all := flowState(f).Head
		flowState(f).Head, flowState(f).Tail, flowState(f).Waiting = nil, nil, false
		st.Queued = false
		for all != nil {
			other := all
			all = stateOf(all).Next
			if other != op {
				q.enqueue(other)
			}
		}
		st.Next = nil
	}
	if st.Err == nil {
		st.Err = err
	}
	if st.Flight == 0 {
		q.end(op, st.Err)
		return
	}
	q.flush = true
	q.schedule()
}

// cancel implements service.Peer.Cancel. The operation may have completed and belong to another shard by now.
func (q *queue) cancel(c cancelation) {
	st := stateOf(c.op)
	if st.Runs.Load() != c.run {
		return
	}
	if st.Canceled = true; st.Queued {
		q.drop(c.op, ErrCanceled)
	}
}

// received handles the completion of a notification receive.
func (q *queue) received(wc *ibverbx.WC) {
	if wc.Status != verbs.StatusSuccess {
		q.fail(wc.Err())
		return
	}
	q.counts.activity.Add(1)
	q.counts.notifications.Add(1)
	if q.unposted++; q.unposted >= receives/4 {
		q.postReceives(q.unposted)
	}
	if q.session != nil {
		q.session.immediate(wc.Imm, wc.ByteLen)
	}
}

// postReceives posts notification receives.
func (q *queue) postReceives(n int) {
	q.unposted = 0
	if _, err := q.qp.PostRecv(q.shard.recvs[:n]); err != nil {
		q.fail(err)
	}
}

// install starts using a VirtualQP.
func (q *queue) install(qp *ibverbx.VirtualQP, depth int) {
	q.qp, q.depth, q.paused, q.broken, q.settled, q.flush = qp, depth, false, false, false, false
	q.blamed, q.rail = nil, -1
	q.shard.queues.Set(qp.Num(), q)
	q.postReceives(receives)
	q.schedule()
}

// end completes an operation that is neither in the ledger nor in a Flow.
func (q *queue) end(op *service.Op, err error) {
	q.ops--
	q.counts.operations.Add(1)
	if err != nil {
		q.counts.failed.Add(1)
	}
	stateOf(op).Bytes.Store(stateOf(op).Done)
	stateOf(op).Runs.Add(1)
	op.Sink.End(op, err)
}

// attach starts a session, still without a VirtualQP. Operations for another process fail.
func (q *queue) attach(s *session) {
	restarted := q.incarnation != 0 && q.incarnation != s.incarnation
	if q.session, q.incarnation = s, s.incarnation; !q.closed {
		q.refuse = nil
	}
	q.requeue(func(op *service.Op) error {
		if restarted || (op.Incarnation != 0 && op.Incarnation != s.incarnation) {
			return ErrRestarted
		}
		return nil
	})
}

// detach stops using the VirtualQP. The caller closes it before calling requeue; posting must stop meanwhile.
func (q *queue) detach() {
	if q.qp != nil {
		q.shard.queues.Delete(q.qp.Num())
		q.qp = nil
	}
}

// sessionLost fails the operations without Replay after a session was lost.
func (q *queue) sessionLost(cause error) {
	q.session = nil
	err := fmt.Errorf("%w: %w", ErrLost, cause)
	q.requeue(func(op *service.Op) error {
		if op.Replay {
			return nil
		}
		return err
	})
}

// refuseAll fails all current and future operations until attach. With a session, whose VirtualQP may still be open, submitted operations
// fail when it closes.
func (q *queue) refuseAll(err error) {
	q.refuse = err
	if q.session == nil {
		q.requeue(func(*service.Op) error { return err })
	}
}

// requeue returns all fragments to their operations and fails the operations rejected by why. The VirtualQP must be closed.
func (q *queue) requeue(why func(*service.Op) error) {
	q.unpostFrom(q.ledger.Head())
	var all []*service.Op
	for _, l := range []*flowList{&q.urgent, &q.bulk} {
		for l.head != nil {
			f := l.pop()
			for flowState(f).Head != nil {
				all = append(all, flowState(f).Head)
				q.popOp(f)
			}
		}
	}
	q.favored = false
	for _, op := range all { // first, because remaining operations may share a Flow with a failed one
		stateOf(op).Err = resultOf(op, why)
	}
	for _, op := range all {
		if stateOf(op).Err == nil {
			if stateOf(op).Tried {
				stateOf(op).Tried = false
				q.counts.replays.Add(1)
			}
			q.enqueue(op)
		}
	}
	for _, op := range all {
		if stateOf(op).Err != nil && !stateOf(op).Queued {
			q.end(op, stateOf(op).Err)
		}
	}
	q.schedule()
}

func resultOf(op *service.Op, why func(*service.Op) error) error {
	switch {
	case stateOf(op).Err != nil:
		return stateOf(op).Err
	case stateOf(op).Canceled:
		return ErrCanceled
	}
	return why(op)
}
