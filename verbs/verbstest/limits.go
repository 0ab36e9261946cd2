package verbstest

import (
	"errors"
	"fmt"
	"testing"

	"ibverbx/verbs"
)

var limitsTests = []test{
	{"SendQueueFull", limitsSendQueueFull},
	{"RecvQueueFull", limitsRecvQueueFull},
	{"ZeroDepth", limitsZeroDepth},
	{"TooManyElements", limitsTooManyElements},
	{"MoreElementsThanAsked", limitsMoreElements},
	{"TooMuchInline", limitsTooMuchInline},
	{"InlineOnRead", limitsInlineOnRead},
	{"UnknownOpcode", limitsUnknownOpcode},
	{"UnknownFlags", limitsUnknownFlags},
	{"MessageTooLong", limitsMessageTooLong},
}

// fill posts one request at a time until post returns an error, which must be ErrQueueFull, and
// returns the number of accepted requests.
func (e *env) fill(what string, post func(id uint64) (int, error)) int {
	e.Helper()
	for id := range 1 << 16 {
		n, err := post(uint64(id))
		if err == nil && n == 1 {
			continue
		}
		if n != 0 || !errors.Is(err, verbs.ErrQueueFull) {
			e.Fatalf("%s number %d = %d, %v, want 1, nil or 0, ErrQueueFull", what, id, n, err)
		}
		return id
	}
	e.Fatalf("%s: no end after %d requests", what, 1<<16)
	return 0
}

// PostSend to a full queue returns ErrQueueFull and the number of accepted requests, and does not
// post the rest. The peer has no receives, so that no slot becomes free.
func limitsSendQueueFull(e *env) {
	const depth = 8
	c := e.conn(connConfig{sends: depth, cqA: e.newCQ(e.a, min(4096, e.a.attr.MaxCQE), nil)})
	total := e.fill("PostSend", func(id uint64) (int, error) { return c.a.PostSend([]verbs.SendWR{sendImm(id, uint32(id))}) })
	if total < depth {
		e.Fatalf("the send queue took %d requests, want at least %d", total, depth)
	}
	// A chain for a full queue.
	e.rejectsPost("PostSend to a full queue", 0, verbs.ErrQueueFull)(c.a.PostSend([]verbs.SendWR{send(7777), send(7778)}))
	next := e.deliverAll(c, 0, total)
	// A chain that fits in part: the queue is now empty and accepts total requests.
	wrs := chain(total+3, func(i int) verbs.SendWR { return sendImm(uint64(next+i), uint32(next+i)) })
	what := fmt.Sprintf("PostSend of %d requests to an empty queue of %d", len(wrs), total)
	e.rejectsPost(what, total, verbs.ErrQueueFull)(c.a.PostSend(wrs))
	next = e.deliverAll(c, next, total)
	e.post(c.a, sendImm(uint64(next), uint32(next)))
	e.deliverAll(c, next, 1)
	e.expectEmpty(c.b.cq)
}

// deliverAll posts a receive at B for each of count messages posted by A, with consecutive wr_ids
// and immediates from first, and takes the completions of both sides.
func (e *env) deliverAll(c *conn, first, count int) (next int) {
	e.Helper()
	for i := first; i < first+count; i++ {
		e.postRecv(c.b, recv(uint64(i)))
		e.getsImm(c.b, uint64(i), verbs.WCRecv, 0, uint32(i))
	}
	e.doneFrom(c.a, uint64(first), count, verbs.WCSend)
	return first + count
}

// PostRecv to a full queue returns ErrQueueFull and the number of accepted receives, and does not
// post the rest.
func limitsRecvQueueFull(e *env) {
	const depth = 8
	c := e.conn(connConfig{recvs: depth, cqB: e.newCQ(e.b, min(4096, e.b.attr.MaxCQE), nil)})
	total := e.fill("PostRecv", func(id uint64) (int, error) { return c.b.PostRecv([]verbs.RecvWR{recv(id)}) })
	if total < depth {
		e.Fatalf("the receive queue took %d requests, want at least %d", total, depth)
	}
	e.rejectsPost("PostRecv to a full queue", 0, verbs.ErrQueueFull)(c.b.PostRecv([]verbs.RecvWR{recv(7777), recv(7778)}))
	// One message frees one receive slot.
	e.carry(c, sendImm(0, 0), 0)
	two := []verbs.RecvWR{recv(uint64(total)), recv(7777)}
	e.rejectsPost("PostRecv of two requests to a queue with one place", 1, verbs.ErrQueueFull)(c.b.PostRecv(two))
	for i := 1; i <= total; i++ {
		e.carry(c, sendImm(uint64(i), uint32(i)), uint64(i))
	}
}

// A queue of depth zero rejects all requests.
func limitsZeroDepth(e *env) {
	cq := e.newCQ(e.a, 4, nil)
	q := e.newQP(e.a, verbs.QPConfig{Type: verbs.RC, SendCQ: cq, RecvCQ: cq})
	peer := e.newQP(e.b, verbs.QPConfig{Type: verbs.RC, MaxSendWR: 1, MaxRecvWR: 1})
	e.connect(&conn{q, peer}, connConfig{})
	e.rejectsPost("PostSend to a queue of depth 0", 0)(q.PostSend([]verbs.SendWR{send(1)}))
	e.rejectsPost("PostRecv to a queue of depth 0", 0)(q.PostRecv([]verbs.RecvWR{recv(1)}))
}

// refusedSend posts one illegal request. It must have no effect, and the connection remains usable.
func (e *env) refusedSend(c *conn, what string, wr verbs.SendWR) {
	e.Helper()
	n, err := c.a.PostSend([]verbs.SendWR{wr})
	e.rejectsPost("PostSend with "+what, 0, verbs.ErrInvalid)(n, err)
	if op, ok := errors.AsType[*verbs.OpError](err); !ok || op.QPN != c.a.Num() {
		e.Errorf("PostSend with %s = %v, want an *OpError that names QP %#x", what, err, c.a.Num())
	}
	e.fence(c)
}

// A request with more than MaxSGE elements is refused.
func limitsTooManyElements(e *env) {
	c := e.conn(connConfig{sges: e.sgeLimit()})
	for _, k := range []uint8{verbs.MaxSGE + 1, 255} {
		wr := send(1)
		wr.NumSGE = k
		e.refusedSend(c, "too many elements", wr)
		e.rejectsPost(fmt.Sprintf("PostRecv with %d elements", k), 0, verbs.ErrInvalid)(c.a.PostRecv([]verbs.RecvWR{{WRID: 1, NumSGE: k}}))
	}
}

// More elements than the QP was created for are refused, or executed if the provider rounded the
// number up (ibv_create_qp(3): the actual values may be higher).
func limitsMoreElements(e *env) {
	if e.sgeLimit() < 2 {
		e.Skip("the device takes one element")
	}
	c := e.conn(connConfig{sges: 1})
	src, dst := e.filled(e.a, 1, 64), e.painted(e.b, 64)
	n, err := c.a.PostSend([]verbs.SendWR{write(1, dst, 0, src.sge(0, 10), src.sge(10, 10))})
	switch {
	case n == 1 && err == nil:
		e.done(c.a, 1, verbs.WCRDMAWrite)
		e.holds(dst, 0, payload(1, 64)[:20])
	case n == 0:
		e.refused("PostSend with two elements on a QP for one", err, verbs.ErrInvalid)
		e.fence(c)
		e.untouched(dst)
	default:
		e.Errorf("PostSend with two elements on a QP for one = %d, %v", n, err)
	}
}

// More inline data than the QP supports is refused.
func limitsTooMuchInline(e *env) {
	c := e.conn(connConfig{inline: e.inlineSize()})
	size := e.a.attr.MaxInline + 1
	if size == 1 {
		size = 1 << 20 // unknown, but no device accepts this much
	}
	e.refusedSend(c, "too many inline bytes", flagged(send(1, e.buf(e.a, size).sge(0, size)), verbs.SendInline))
}

// INLINE is refused on READs and atomics: it is for sends and writes (ibv_post_send(3)).
func limitsInlineOnRead(e *env) {
	c := e.conn(connConfig{inline: e.inlineSize()})
	local, remote := e.buf(e.a, 8), e.buf(e.b, 8)
	e.refusedSend(c, "INLINE on READ", flagged(read(1, remote, 0, local.sge(0, 8)), verbs.SendInline))
	if e.a.attr.Atomic != verbs.AtomicNone {
		e.refusedSend(c, "INLINE on an atomic", flagged(fetchAdd(1, remote, 0, 1, local.sge(0, 8)), verbs.SendInline))
	}
	e.same(remote.bytes(), make([]byte, 8))
}

// An unknown opcode is refused.
func limitsUnknownOpcode(e *env) {
	c := e.rc()
	for _, op := range []verbs.Opcode{7, 100, 255} {
		wr := send(1)
		wr.Opcode = op
		e.refusedSend(c, "an unknown opcode", wr)
	}
}

// An unknown flag is refused.
func limitsUnknownFlags(e *env) {
	c := e.rc()
	for bit := verbs.SendFlags(1 << 4); bit != 0; bit <<= 1 {
		e.refusedSend(c, "an unknown flag", flagged(send(1), bit))
	}
}

// A message longer than the device's limit is refused, or completes with LOC_LEN_ERR (as IBTA
// 11.6.2 specifies; ibv_post_send(3) allows an immediate error). The elements are valid ones of one
// region, so no other error is right.
func limitsMessageTooLong(e *env) {
	limit := e.a.attr.MaxMsgSize
	k := uint64(e.sgeLimit())
	size := limit/k + 1
	if size > 1<<29+1 || (testing.Short() && size > 1<<24) {
		e.Skipf("a message of more than %d bytes is too large for a test", limit)
	}
	c := e.conn(connConfig{sges: int(k)})
	mem := e.memory(int(size))
	mr, err := e.a.pd.RegisterMemory(mem, 0)
	if err != nil {
		e.Skipf("cannot register %d bytes: %v", size, err)
	}
	e.closeLater("MR", mr)
	wr := send(1)
	for i := range k {
		wr.SGE[i] = verbs.SGE{Addr: mr.Addr(), Length: uint32(size), LKey: mr.LKey()}
	}
	wr.NumSGE = uint8(k)
	n, err := c.a.PostSend([]verbs.SendWR{wr})
	if n == 0 {
		e.refused("PostSend of a message above MaxMsgSize", err, verbs.ErrInvalid, verbs.ErrLimit)
		e.fence(c)
		return
	}
	e.must(err, "PostSend")
	e.fails(c.a, 1, verbs.StatusLocLenErr)
	e.inState(c.a, verbs.StateErr)
}
