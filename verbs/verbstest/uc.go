package verbstest

import (
	"fmt"

	"ibverbx/verbs"
)

var ucTests = []test{
	{"Send", ucSend},
	{"SendWithImm", ucSendImm},
	{"Write", ucWrite},
	{"WriteWithImm", ucWriteImm},
	{"Inline", ucInline},
	{"ReadAndAtomicsRefused", ucReadRefused},
	{"NoReceiveDrops", ucNoReceive},
	{"BadKeyDrops", ucBadKey},
	{"UnsignaledIsSilent", ucUnsignaled},
	{"LocalErrorIsSQE", ucSQE},
	{"FlushInErr", ucFlush},
}

// uc returns a connected pair of UC QPs.
func (e *env) uc() *conn {
	e.Helper()
	e.needUC()
	return e.conn(connConfig{typ: verbs.UC, inline: e.inlineSize()})
}

// ucSizes leaves out what a slow receiver may have to drop: UC has no flow control.
func (e *env) ucSizes(run func(e *env, n int)) {
	for _, n := range e.sizes() {
		if n <= 1<<16+1 {
			e.sub(fmt.Sprintf("size=%d", n), func(e *env) { run(e, n) })
		}
	}
}

// Messages of all sizes arrive whole. The sender completes without an answer.
func ucSend(e *env) {
	c := e.uc()
	e.ucSizes(func(e *env, n int) {
		src, dst := e.buf(e.a, n+5), e.painted(e.b, n+32)
		src.put(3, payload(uint64(n), n))
		e.message(c, recv(1, dst.sge(7, n+9)), send(2, src.part(3, n)...))
		e.holds(dst, 7, payload(uint64(n), n))
	})
}

// SEND_WITH_IMM carries its number on UC too.
func ucSendImm(e *env) {
	c, src, dst := e.uc(), e.filled(e.a, 1, 16), e.buf(e.b, 16)
	e.postRecv(c.b, recv(1, dst.sge(0, 16)), recv(2, dst.sge(0, 16)))
	e.post(c.a, sendImm(3, 0x01020304), sendImm(4, 0xfffffffe, src.sge(0, 16)))
	e.getsImm(c.b, 1, verbs.WCRecv, 0, 0x01020304)
	e.getsImm(c.b, 2, verbs.WCRecv, 16, 0xfffffffe)
	e.same(dst.bytes(), payload(1, 16))
}

// A WRITE puts the bytes there and nowhere else. The SEND behind it says that it is
// done.
func ucWrite(e *env) {
	c := e.uc()
	e.ucSizes(func(e *env, n int) {
		src, dst := e.buf(e.a, n+5), e.painted(e.b, n+32)
		src.put(3, payload(uint64(n), n))
		e.postRecv(c.b, recv(1))
		e.do(c.a, write(2, dst, 13, src.part(3, n)...), send(3))
		e.gets(c.b, 1, 0)
		e.holds(dst, 13, payload(uint64(n), n))
	})
}

// WRITE_WITH_IMM writes and then consumes a receive on UC too.
func ucWriteImm(e *env) {
	c := e.uc()
	e.ucSizes(func(e *env, n int) {
		src, dst := e.buf(e.a, n+5), e.painted(e.b, n+32)
		src.put(3, payload(uint64(n), n))
		e.message(c, recv(1), writeImm(2, uint32(n), dst, 13, src.part(3, n)...))
		e.holds(dst, 13, payload(uint64(n), n))
	})
}

// Inline bytes are taken at post time on UC too.
func ucInline(e *env) {
	n := e.inlineSize()
	c, src, dst := e.uc(), e.filled(e.a, 1, n), e.buf(e.b, n)
	e.postRecv(c.b, recv(1, dst.sge(0, n)))
	e.post(c.a, flagged(send(2, src.sge(0, n)), verbs.SendInline))
	src.paint()
	e.gets(c.b, 1, n)
	e.same(dst.bytes(), payload(1, n))
}

// UC has neither READ nor atomics. They are refused when posted, or complete with
// LOC_QP_OP_ERR: ibv_post_send(3) has the table and leaves the way open.
func ucReadRefused(e *env) {
	for _, op := range []verbs.Opcode{verbs.OpRDMARead, verbs.OpAtomicFetchAndAdd, verbs.OpAtomicCmpAndSwp} {
		e.sub(op.String(), func(e *env) {
			c, local, remote := e.uc(), e.painted(e.a, 8), e.buf(e.b, 8)
			n, err := c.a.PostSend([]verbs.SendWR{oneSided(op, 1, remote, 0, local.sge(0, 8))})
			if n == 0 {
				e.refused("PostSend of "+op.String()+" on UC", err, verbs.ErrInvalid)
				e.fence(c)
			} else {
				e.fails(c.a, 1, verbs.StatusLocQPOpErr)
			}
			e.untouched(local)
			e.same(remote.bytes(), make([]byte, 8))
		})
	}
}

// settled waits until B has handled all that A sent on a UC connection before: a WRITE
// on it arrives after that, and READs over another connection look for it.
func (e *env) settled(c, look *conn, number uint64) {
	e.Helper()
	mark, found := e.buf(e.a, 16), e.buf(e.b, 8)
	mark.putWord(0, number)
	e.do(c.a, write(9001, found, 0, mark.sge(0, 8)))
	for d := newDeadline(); mark.word(8) != number; {
		e.do(look.a, read(9002, found, 0, mark.sge(8, 8)))
		if mark.word(8) != number && !d.pause() {
			e.Fatalf("a UC WRITE did not arrive within %v", patience)
		}
	}
}

// A message that finds no receive is dropped without an error on either side, and the
// next one gets through (IBTA 9.8, unreliable service).
func ucNoReceive(e *env) {
	c, look := e.uc(), e.rc()
	src, dst := e.buf(e.a, 5000), e.buf(e.b, 5000)
	for round := range uint64(3) {
		src.put(0, payload(round, 5000))
		e.do(c.a, sendImm(1, 1, src.sge(0, 5000)), writeImm(2, 2, dst, 0))
		e.settled(c, look, round+1)
		e.none(c.b.cq)
		dst.paint()
		e.message(c, recv(3, dst.sge(0, 4000)), sendImm(4, 4, src.sge(0, 3000)))
		e.holds(dst, 0, payload(round, 5000)[:3000])
		e.bothIn(c, verbs.StateRTS)
	}
}

// A WRITE that is not allowed is dropped, and the next message gets through: UC has no
// way to answer (IBTA 9.8, unreliable service).
func ucBadKey(e *env) {
	c, look := e.uc(), e.rc()
	src, dst := e.buf(e.a, 5000), e.painted(e.b, 5000)
	bad := write(1, dst, 0, src.sge(0, 5000))
	bad.RKey ^= 0x5a5a5a5a
	e.post(c.a, bad, write(2, dst, 1, src.sge(0, 5000)))
	e.done(c.a, 1, verbs.WCRDMAWrite)
	e.done(c.a, 2, verbs.WCRDMAWrite)
	e.settled(c, look, 7)
	e.untouched(dst)
	e.postRecv(c.b, recv(3, dst.sge(0, 100)))
	src.put(0, payload(3, 100))
	e.post(c.a, send(4, src.sge(0, 100)))
	e.gets(c.b, 3, 100)
	e.holds(dst, 0, payload(3, 100))
}

// An unsignaled request that succeeds has no completion on UC either.
func ucUnsignaled(e *env) {
	c, dst := e.uc(), e.buf(e.b, 8)
	e.postRecv(c.b, recv(1))
	e.do(c.a, silent(write(2, dst, 0)), silent(send(3)), write(4, dst, 0))
	e.gets(c.b, 1, 0)
	e.none(c.a.cq)
}

// sqe provokes a local error on q by posting bad, and checks what SQE promises: the
// send queue is flushed, and Modify brings it back to RTS (IBTA 10.3.1.6).
func (e *env) sqe(q *end, bad, next verbs.SendWR) {
	e.Helper()
	bad.WRID, next.WRID = 1, 2
	e.post(q, bad, next, silent(next))
	e.fails(q, 1, verbs.StatusLocProtErr)
	e.flushed(q.cq, q, 2, 2)
	e.inState(q, verbs.StateSQE)
	e.post(q, next)
	e.flushed(q.cq, q, 2)
}

// A local error of a send puts a UC QP in SQE: its sends are flushed, its receives go
// on, and it can be brought back to RTS.
func ucSQE(e *env) {
	c, src := e.uc(), e.buf(e.a, 64)
	e.sqe(c.a, send(1, src.sge(1, 64)), send(2))
	e.postRecv(c.a, recv(11))
	e.do(c.b, sendImm(12, 5))
	e.getsImm(c.a, 11, verbs.WCRecv, 0, 5)
	attr := verbs.QPAttr{State: verbs.StateRTS, CurState: verbs.StateSQE}
	e.must(c.a.Modify(attr, verbs.AttrState|verbs.AttrCurState), "Modify from SQE to RTS")
	e.inState(c.a, verbs.StateRTS)
	e.message(c, recv(13), sendImm(14, 6))
}

// ERR flushes a UC QP as it does an RC QP.
func ucFlush(e *env) {
	c := e.uc()
	e.postRecv(c.a, recv(1), recv(2))
	e.toErr(c.a)
	e.flushed(c.a.cq, c.a, 1, 2)
	e.post(c.a, send(3), silent(send(4)))
	e.flushed(c.a.cq, c.a, 3, 4)
	e.none(c.a.cq)
}
