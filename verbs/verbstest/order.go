package verbstest

import "ibverbx/verbs"

var orderTests = []test{
	{"MixedOpcodes", orderMixed},
	{"UnsignaledIsSilent", orderUnsignaled},
	{"UnsignaledFreesSlots", orderUnsignaledFrees},
	{"UnsignaledErrorReported", orderUnsignaledError},
	{"SignalAll", orderSignalAll},
	{"WritesBeforeSend", orderWritesBeforeSend},
	{"WritesBeforeWriteWithImm", orderWritesBeforeImm},
	{"OneDoorbellOrMany", orderDoorbells},
}

// Requests on one send queue complete in posting order, whatever their opcodes (IBTA 9.5,
// transaction ordering).
func orderMixed(e *env) {
	const size, count = 1 << 17, 48
	c := e.rc()
	local, remote := e.buf(e.a, size), e.buf(e.b, size)
	kinds := []verbs.SendWR{
		read(0, remote, 0, local.sge(0, size)),
		write(0, remote, 0, local.sge(0, 8)),
		send(0, local.sge(0, 100)),
		read(0, remote, 0, local.sge(0, 8)),
		writeImm(0, 1, remote, 0, local.sge(0, size)),
		fetchAdd(0, remote, 8, 1, local.sge(8, 8)),
		sendImm(0, 1),
		compareSwap(0, remote, 16, 1, 2, local.sge(16, 8)),
	}
	for id := range uint64(count) {
		e.postRecv(c.b, recv(id, remote.sge(1024, 100)))
	}
	e.do(c.a, chain(count, func(i int) verbs.SendWR {
		w := kinds[(i*5+i/8)%len(kinds)]
		if (e.a.attr.Atomic == verbs.AtomicNone || e.pair.Device) && w.Opcode > verbs.OpRDMARead {
			w = kinds[1]
		}
		w.WRID = uint64(i)
		return w
	})...)
}

// A successful unsignaled request generates no completion.
func orderUnsignaled(e *env) {
	c := e.rc()
	src, dst := e.filled(e.a, 1, 64), e.buf(e.b, 64)
	e.postRecv(c.b, recv(1))
	e.do(c.a, silent(write(2, dst, 0, src.sge(0, 64))), silent(send(3)), silent(read(4, dst, 0, src.sge(0, 64))),
		write(5, dst, 0), silent(write(6, dst, 0)), write(7, dst, 0))
	e.expectEmpty(c.a.cq)
	e.gets(c.b, 1, 0)
	e.same(dst.bytes(), payload(1, 64))
}

// The completion of a signaled request frees the slots of the unsignaled ones before
// it (ibv_post_send(3) with sq_sig_all 0).
func orderUnsignaledFrees(e *env) {
	const depth = 8
	c := e.conn(connConfig{sends: depth})
	src, dst := e.buf(e.a, 64), e.buf(e.b, 64)
	for round := range uint64(50) {
		src.put(0, payload(round, 64))
		var wrs []verbs.SendWR
		for range depth - 1 {
			wrs = append(wrs, silent(write(999, dst, 0)))
		}
		e.post(c.a, append(wrs, write(round, dst, 0, src.sge(0, 64)))...)
		e.done(c.a, round, verbs.WCRDMAWrite)
		e.same(dst.bytes(), payload(round, 64))
	}
	e.expectEmpty(c.a.cq)
}

// A failed unsignaled request generates a completion.
func orderUnsignaledError(e *env) {
	c, src, dst := e.rc(), e.buf(e.a, 64), e.buf(e.b, 64)
	bad := silent(write(2, dst, 1, src.sge(0, 64)))
	e.post(c.a, silent(write(1, dst, 0)), bad, silent(write(3, dst, 0)), write(4, dst, 0))
	wc := e.waitOne(c.a.cq)
	if e.pair.Lossy && wc.WRID == 1 {
		e.failed(wc, c.a, 1, verbs.StatusRetryExcErr) // the response to both was lost
		e.flushed(c.a.cq, c.a, 2, 3, 4)
		return
	}
	e.failed(wc, c.a, 2, e.orRetryExc(verbs.StatusRemAccessErr)...)
	e.flushed(c.a.cq, c.a, 3, 4)
}

// A QP created with SignalAll completes every request.
func orderSignalAll(e *env) {
	c := e.conn(connConfig{signalAll: true})
	dst, local := e.buf(e.b, 64), e.buf(e.a, 64)
	e.postRecv(c.b, recv(9))
	wrs := []verbs.SendWR{silent(write(1, dst, 0)), silent(send(2)), silent(read(3, dst, 0, local.sge(0, 64))), write(4, dst, 0)}
	e.post(c.a, wrs...)
	for _, w := range wrs {
		e.done(c.a, w.WRID, w.Opcode.WC())
	}
	e.expectEmpty(c.a.cq)
}

// writesThen posts unsignaled writes and a last request, and checks that B sees all of them when
// its receive completes.
func (e *env) writesThen(last func(id uint64) verbs.SendWR, op verbs.WCOpcode) {
	e.Helper()
	const count, size = 40, 3000
	c := e.rc()
	src, dst := e.buf(e.a, count*size), e.buf(e.b, count*size)
	for round := range uint64(5) {
		want := payload(round, count*size)
		src.put(0, want)
		wrs := chain(count, func(i int) verbs.SendWR {
			return silent(write(0, dst, i*size, src.sge(i*size, size)))
		})
		e.postRecv(c.b, recv(round))
		e.post(c.a, append(wrs, last(round))...)
		e.ok(e.waitOne(c.b.cq), c.b, round, op)
		e.same(dst.bytes(), want)
		if wc := e.waitOne(c.a.cq); wc.WRID != round || wc.Err() != nil {
			e.Fatalf("completion = wr_id %d, %v, want the success of wr_id %d", wc.WRID, wc.Err(), round)
		}
	}
}

// When a receive completes, the WRITEs that the peer posted before the SEND are in memory (IBTA
// 9.5).
func orderWritesBeforeSend(e *env) {
	e.writesThen(func(id uint64) verbs.SendWR { return send(id) }, verbs.WCRecv)
}

// When a receive completes, the WRITEs that the peer posted before the WRITE_WITH_IMM are in
// memory.
func orderWritesBeforeImm(e *env) {
	dst := e.buf(e.b, 8)
	e.writesThen(func(id uint64) verbs.SendWR { return writeImm(id, 1, dst, 0) }, verbs.WCRecvRDMAWithImm)
}

// A chain has the same effect as single posts, in the same order.
func orderDoorbells(e *env) {
	c := e.rc()
	next := uint64(0)
	for _, n := range []int{1, 5, 1, 1, 30, 2, 13} {
		var wrs []verbs.SendWR
		for range n {
			e.postRecv(c.b, recv(next))
			wrs = append(wrs, sendImm(next, uint32(next)))
			next++
		}
		e.post(c.a, wrs...)
	}
	for id := range next {
		e.done(c.a, id, verbs.WCSend)
		e.getsImm(c.b, id, verbs.WCRecv, 0, uint32(id))
	}
}
