package node

import (
	"errors"

	"ibverbx"
	"ibverbx/internal/service"
	"ibverbx/verbs"
)

// Posting limits, in bytes except maxUnsignaled.
const (
	// fragmentBytes is the maximum request size.
	fragmentBytes = 1 << 20
	// turnBytes is the quantum of a Flow in the round-robin.
	turnBytes = 256 << 10
	// urgentBytes is the maximum size of an operation that overtakes longer ones.
	urgentBytes = 16 << 10
	// maxUnsignaledBytes and maxUnsignaled limit consecutive unsignaled requests.
	maxUnsignaledBytes = 256 << 10
	maxUnsignaled      = 16
	// publishBytes is the minimum fragment size that updates Op.Progress before completion.
	publishBytes = 32 << 10
)

// fragment is a posted fragment.
type fragment struct {
	op     *service.Op
	length uint32
	// signaled means that the request is signaled.
	signaled bool
}

// nextFlow returns the Flow that posts next and its list, or nil if no Flow may post.
func (q *queue) nextFlow() (f *service.Flow, from *flowList) {
	room := q.depth - q.ledger.Len()
	u, b := q.urgent.head, q.bulk.head
	for b != nil && flowState(b).Deficit <= 0 {
		flowState(b).Deficit += turnBytes
		q.bulk.push(q.bulk.pop())
		b = q.bulk.head
	}
	switch {
	case b == nil:
	case room <= q.depth/4:
		b = nil
	case q.bytes > 0 && q.bytes+int(nextLength(flowState(b).Head)) > q.window:
		b = nil
		q.flush = q.flush || q.unsignaled >= q.ledger.Len() // otherwise a completion is due anyway
	}
	switch {
	case room <= 0: // negative after postMarker
		return nil, nil
	case u != nil && (b == nil || !q.favored || isStarted(flowState(u).Head)):
		q.favored = true
		return u, &q.urgent
	case b != nil:
		q.favored = false
		return b, &q.bulk
	}
	return nil, nil
}

// nextLength returns the length of an operation's next fragment.
func nextLength(op *service.Op) uint64 {
	return min(fragmentBytes, op.Blocks[stateOf(op).Block].Length-stateOf(op).Offset)
}

func isStarted(op *service.Op) bool { return stateOf(op).Block > 0 || stateOf(op).Offset > 0 }

// gather appends the next fragments to the ledger and their requests to wrs. It returns their number.
func (q *queue) gather(wrs []ibverbx.SendWR) (n int) {
	for n < len(wrs) {
		f, from := q.nextFlow()
		if f == nil {
			break
		}
		op := flowState(f).Head
		last := q.buildRequest(op, &wrs[n])
		n++
		if from == &q.bulk {
			flowState(f).Deficit -= int(wrs[n-1].SGE[0].Length)
		}
		if last {
			from.pop()
			q.popOp(f)
			q.list(f)
		}
	}
	return n
}

// popOp removes the first operation of a Flow.
func (q *queue) popOp(f *service.Flow) {
	op := flowState(f).Head
	if flowState(f).Head = stateOf(op).Next; flowState(f).Head == nil {
		flowState(f).Tail, flowState(f).Deficit = nil, 0
	}
	stateOf(op).Next, stateOf(op).Queued = nil, false
}

// buildRequest builds the request for an operation's next fragment. It reports whether that is the last one.
func (q *queue) buildRequest(op *service.Op, wr *ibverbx.SendWR) (last bool) {
	st := stateOf(op)
	b := &op.Blocks[st.Block]
	length := uint32(nextLength(op))
	wr.WRID, wr.Opcode, wr.Flags, wr.Imm = uint64(q.ledger.Tail()), b.Opcode, 0, 0
	wr.Remote, wr.RemoteOffset = b.Remote, b.RemoteOffset+st.Offset
	wr.NumSGE = 0
	wr.SGE[0] = ibverbx.SGE{Region: b.Local, Offset: b.LocalOffset + st.Offset, Length: length}
	if length > 0 {
		wr.NumSGE = 1
	}
	st.Left -= uint64(length)
	if st.Offset += uint64(length); st.Offset == b.Length {
		st.Block, st.Offset = st.Block+1, 0
	}
	if last = st.Block == len(op.Blocks); last && op.Notify {
		wr.Opcode, wr.Imm = verbs.OpRDMAWriteWithImm, op.Imm
	}
	q.unsignaled++
	q.unsignaledBytes += int(length)
	if last || q.unsignaled >= min(maxUnsignaled, q.depth/4) || q.unsignaledBytes >= min(maxUnsignaledBytes, q.window/4) {
		wr.Flags = verbs.SendSignaled
		q.unsignaled, q.unsignaledBytes = 0, 0
	}
	st.Tried = true
	st.Flight++
	q.bytes += int(length)
	q.shard.flight++
	q.ledger.Push(fragment{op: op, length: length, signaled: wr.Flags != 0})
	return last
}

// post posts fragments until all are posted or the queue is full.
func (q *queue) post() {
	wrs := q.shard.wrs[:]
	for q.qp != nil && !q.paused && !q.broken {
		first := q.ledger.Tail()
		n := q.gather(wrs)
		if n == 0 {
			q.postMarker()
			return
		}
		taken, err := q.qp.PostSend(wrs[:n])
		if taken < n {
			q.unpost(first+uint32(taken), err)
		}
		if errors.Is(err, verbs.ErrQueueFull) {
			return
		}
	}
}

// postMarker posts an empty signaled request after unsignaled fragments if flush is set. It always fits: depth is less than the VirtualQP's.
func (q *queue) postMarker() {
	if !q.flush || q.unsignaled == 0 {
		q.flush = false
		return
	}
	q.flush, q.unsignaled, q.unsignaledBytes = false, 0, 0
	wr := ibverbx.SendWR{WRID: uint64(q.ledger.Tail()), Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled}
	if _, err := q.qp.PostSend([]ibverbx.SendWR{wr}); err != nil {
		q.fail(err)
		return
	}
	q.shard.flight++
	q.ledger.Push(fragment{signaled: true})
}

// unpost requeues the fragments from seq on, which PostSend did not accept. If the VirtualQP is full, they wait for the next completion.
// Otherwise the first one fails its operation.
func (q *queue) unpost(seq uint32, err error) {
	bad := q.ledger.At(seq).op
	q.unpostFrom(seq)
	switch {
	case !errors.Is(err, verbs.ErrQueueFull):
		q.drop(bad, err)
	case q.unsignaled >= q.ledger.Len():
		q.fail(err) // no completion will follow
	}
}

// unpostFrom returns the fragments from seq on to their operations.
func (q *queue) unpostFrom(seq uint32) {
	for q.ledger.Tail() != seq {
		e := *q.ledger.At(q.ledger.Tail() - 1)
		*q.ledger.At(q.ledger.Tail() - 1) = fragment{}
		q.ledger.Truncate(q.ledger.Tail() - 1)
		q.bytes -= int(e.length)
		q.shard.flight--
		if e.op == nil {
			continue
		}
		st := stateOf(e.op)
		st.Flight--
		if st.Offset == 0 {
			st.Block--
			st.Offset = e.op.Blocks[st.Block].Length
		}
		st.Offset -= uint64(e.length)
		st.Left += uint64(e.length)
		if !st.Queued {
			f := flowOf(e.op)
			if st.Next, st.Queued = flowState(f).Head, true; flowState(f).Head == nil {
				flowState(f).Tail = e.op
			}
			flowState(f).Head = e.op
			q.list(f)
		}
	}
	q.unsignaled, q.unsignaledBytes = 0, 0
	for at := q.ledger.Tail(); at != q.ledger.Head() && !q.ledger.At(at-1).signaled; at-- {
		q.unsignaled++
		q.unsignaledBytes += int(q.ledger.At(at - 1).length)
	}
}

// complete completes the fragments up to seq successfully.
func (q *queue) complete(seq uint32) {
	for q.ledger.Len() > 0 && int32(seq-q.ledger.Head()) >= 0 {
		e := q.ledger.Pop()
		q.bytes -= int(e.length)
		q.shard.flight--
		if e.op == nil {
			continue
		}
		op, st := e.op, stateOf(e.op)
		b := &op.Blocks[st.DoneBlock]
		if b.Opcode == verbs.OpRDMARead {
			q.counts.read.Add(uint64(e.length))
		} else {
			q.counts.written.Add(uint64(e.length))
		}
		st.Done += uint64(e.length)
		if st.DoneOffset += uint64(e.length); st.DoneOffset == b.Length {
			st.DoneBlock, st.DoneOffset = st.DoneBlock+1, 0
		}
		if st.Flight--; st.Flight == 0 && !st.Queued {
			if op.Notify && st.Err == nil {
				q.counts.notified.Add(1)
			}
			q.end(op, st.Err)
		} else if e.length >= publishBytes {
			st.Bytes.Store(st.Done)
		}
	}
}

// failed handles a fragment's failed completion.
func (q *queue) failed(wc *ibverbx.WC) {
	seq := uint32(wc.WRID)
	if seq-q.ledger.Head() >= uint32(q.ledger.Len()) {
		return
	}
	q.complete(seq - 1)
	q.settled = true
	err := wc.Err()
	if e := q.ledger.At(seq); e.op != nil && causedByRequest(wc.Status) {
		q.blamed = &RequestError{Rail: q.rail, Err: err}
		stateOf(e.op).Err = q.blamed
	}
	q.fail(err)
}

// handleEvent handles a VirtualQP event, which may precede or follow the failed fragment's completion.
func (q *queue) handleEvent(e *ibverbx.Event) {
	if e.Kind != ibverbx.EventFailed {
		return
	}
	if q.rail = e.Rail; q.blamed != nil {
		q.blamed.Rail = e.Rail
	}
	q.fail(e.Err)
}

// causedByRequest reports whether a status is caused by the request and not by the session. A NIC that cannot copy device memory reports
// StatusGeneralErr, and would do so again in the next session.
func causedByRequest(s verbs.Status) bool {
	switch s {
	case verbs.StatusRemAccessErr, verbs.StatusRemInvReqErr, verbs.StatusRemOpErr, verbs.StatusLocProtErr, verbs.StatusLocLenErr, verbs.StatusLocAccessErr,
		verbs.StatusGeneralErr:
		return true
	default:
		return false
	}
}

// fail closes the session because its VirtualQP is unusable. If the session is being parked, the peer may have closed its VirtualQP with
// the response still in flight; resume closes the session then.
func (q *queue) fail(err error) {
	if q.broken || q.session == nil {
		return
	}
	if q.broken = true; !q.paused {
		q.session.End(err)
	}
}
