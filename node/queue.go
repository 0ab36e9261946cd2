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

// queue is what a Peer has to post and has posted. The lock of its shard guards it.
type queue struct {
	shard *shard
	// session is the present one, nil if there is none. Operations without Replay need one.
	session *session
	// qp is the VirtualQP of the session, nil while it is made or parked.
	qp *ibverbx.VirtualQP
	// paused means that nothing is posted, because the session is being parked.
	paused bool
	// broken means that the VirtualQP has failed, and nothing is posted any more.
	broken bool
	// settled means that a piece has failed. The pieces before it have ended, and those after it are in doubt.
	settled bool
	// blamed is the error of the operation whose piece has failed, and rail that of the lane that has. blamed is nil, and rail -1, until
	// they are known.
	blamed *RequestError
	rail   int
	// refuse is the error with which all operations end at once; nil if they do not.
	refuse error
	// closed means that refuse stays.
	closed bool
	// incarnation is that of the last session.
	incarnation uint64

	// urgent has the Flows whose next operation is short, bulk the others.
	urgent, bulk flowList
	// favored means that the last piece was urgent while others waited.
	favored bool
	// ops is how many operations have not ended.
	ops int

	// ledger has the pieces that are posted and have not ended. The wr_id of a piece is its number there.
	ledger ring.Ring[entry]
	// depth is how many pieces may be in the ledger.
	depth int
	// bytes are the bytes of the pieces in the ledger, and window the limit for operations that are not urgent.
	bytes, window int
	// quiet are the pieces since the last one that asked for a completion, and muted their bytes.
	quiet, muted int
	// flush means that a completion is wanted although no piece may follow.
	flush bool
	// owed is how many notification receives have ended and are not posted again.
	owed int

	// next links queues that have something to post (shard.ready); listed means that this one is linked.
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

// stateOf returns what this package knows of an operation.
func stateOf(op *service.Op) *service.State { return opaque.Open(&op.State) }

// flowState returns what this package knows of a Flow.
func flowState(f *service.Flow) *service.FlowState { return opaque.Open(&f.State) }

func flowOf(op *service.Op) *service.Flow {
	if op.Flow != nil {
		return op.Flow
	}
	return &stateOf(op).Own
}

// add takes an operation that was submitted.
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
		q.stir()
	}
}

// check returns how many bytes an operation has, or what is wrong with it.
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
			err = verbs.Invalidf("%d bytes at %d of %d of this side", b.Length, b.LocalOffset, b.Local.Len())
		case b.RemoteOffset > b.Remote.Length || b.Length > b.Remote.Length-b.RemoteOffset:
			err = verbs.Invalidf("%d bytes at %d of %d of the peer", b.Length, b.RemoteOffset, b.Remote.Length)
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

// list makes a Flow with operations wait for its turn.
func (q *queue) list(f *service.Flow) {
	switch {
	case flowState(f).Waiting || flowState(f).Head == nil:
	case stateOf(flowState(f).Head).Left <= urgentBytes:
		q.urgent.push(f)
	default:
		q.bulk.push(f)
	}
}

// stir makes the shard post what the queue has.
func (q *queue) stir() {
	switch {
	case q.listed || (q.urgent.head == nil && q.bulk.head == nil && !q.flush):
	case q.qp == nil:
		if q.session != nil {
			q.session.poke() // it may be parked
		}
	default:
		q.listed = true
		q.next, q.shard.ready = q.shard.ready, q
	}
}

// drop makes an operation post nothing more. It ends with err when its pieces have ended.
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
	q.stir()
}

// cancel is service.Peer.Cancel. The operation may have ended. Then it may belong to another shard.
func (q *queue) cancel(c cancelation) {
	st := stateOf(c.op)
	if st.Runs.Load() != c.run {
		return
	}
	if st.Canceled = true; st.Queued {
		q.drop(c.op, ErrCanceled)
	}
}

// received takes the completion of a notification receive.
func (q *queue) received(wc *ibverbx.WC) {
	if wc.Status != verbs.StatusSuccess {
		q.fail(wc.Err())
		return
	}
	q.counts.activity.Add(1)
	q.counts.notifications.Add(1)
	if q.owed++; q.owed >= receives/4 {
		q.postReceives(q.owed)
	}
	if q.session != nil {
		q.session.immediate(wc.Imm, wc.ByteLen)
	}
}

// postReceives posts notification receives.
func (q *queue) postReceives(n int) {
	q.owed = 0
	if _, err := q.qp.PostRecv(q.shard.recvs[:n]); err != nil {
		q.fail(err)
	}
}

// install makes the queue use a VirtualQP.
func (q *queue) install(qp *ibverbx.VirtualQP, depth int) {
	q.qp, q.depth, q.paused, q.broken, q.settled, q.flush = qp, depth, false, false, false, false
	q.blamed, q.rail = nil, -1
	q.shard.queues.Set(qp.Num(), q)
	q.postReceives(receives)
	q.stir()
}

// end ends an operation that has no piece in the ledger and is in no Flow.
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

// attach begins a session, which has no VirtualQP yet. Operations for another process end.
func (q *queue) attach(s *session) {
	restarted := q.incarnation != 0 && q.incarnation != s.incarnation
	if q.session, q.incarnation = s, s.incarnation; !q.closed {
		q.refuse = nil
	}
	q.sift(func(op *service.Op) error {
		if restarted || (op.Incarnation != 0 && op.Incarnation != s.incarnation) {
			return ErrRestarted
		}
		return nil
	})
}

// detach takes the VirtualQP from the queue. The caller closes it before it calls sift, and nothing may be posted meanwhile.
func (q *queue) detach() {
	if q.qp != nil {
		q.shard.queues.Delete(q.qp.Num())
		q.qp = nil
	}
}

// lost ends the operations that do not survive a session.
func (q *queue) lost(cause error) {
	q.session = nil
	err := fmt.Errorf("%w: %w", ErrLost, cause)
	q.sift(func(op *service.Op) error {
		if op.Replay {
			return nil
		}
		return err
	})
}

// refuseAll ends all operations and all that follow, until attach. If there is a session, whose VirtualQP may be open although the queue
// has given it up, those that were submitted end with the session.
func (q *queue) refuseAll(err error) {
	q.refuse = err
	if q.session == nil {
		q.sift(func(*service.Op) error { return err })
	}
}

// sift takes back all pieces and ends the operations for which why returns an error. There must be no VirtualQP.
func (q *queue) sift(why func(*service.Op) error) {
	q.takeBack(q.ledger.Head())
	var all []*service.Op
	for _, l := range []*flowList{&q.urgent, &q.bulk} {
		for l.head != nil {
			f := l.pop()
			for flowState(f).Head != nil {
				all = append(all, flowState(f).Head)
				q.unhead(f)
			}
		}
	}
	q.favored = false
	for _, op := range all { // first, because those that stay may share a Flow with one that ends
		stateOf(op).Err = whyOf(op, why)
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
	q.stir()
}

func whyOf(op *service.Op, why func(*service.Op) error) error {
	switch {
	case stateOf(op).Err != nil:
		return stateOf(op).Err
	case stateOf(op).Canceled:
		return ErrCanceled
	}
	return why(op)
}
