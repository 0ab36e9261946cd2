package verbstest

import "ibverbx/verbs"

var writeTests = []test{
	{"Sizes", writeSizes},
	{"Immediate", writeImmediate},
	{"ImmediateIgnoresReceiveBuffer", writeImmediateIgnoresBuffer},
	{"ConsumesNoReceive", writeConsumesNoReceive},
	{"ZeroLengthIgnoresKey", writeZeroLength},
	{"WholeRegion", writeWholeRegion},
	{"Gather", writeGather},
	{"Inline", writeInline},
	{"LastOneWins", writeLastOneWins},
	{"PassiveTarget", writePassiveTarget},
}

// WRITEs of all sizes, from and to odd addresses, change exactly the target bytes.
func writeSizes(e *env) {
	c := e.rc()
	e.eachSize(c, func(e *env, n int, src, dst *buf) {
		e.do(c.a, write(1, dst, 13, src.part(3, n)...))
		e.holds(dst, 13, payload(uint64(n), n))
	})
}

// WRITE_WITH_IMM writes like WRITE and then consumes a receive, which reports the immediate and the
// number of bytes written, even if it is zero.
func writeImmediate(e *env) { e.writeImmSizes(e.rc()) }

func (e *env) writeImmSizes(c *conn) {
	e.eachSize(c, func(e *env, n int, src, dst *buf) {
		e.postRecv(c.b, recv(1))
		e.post(c.a, writeImm(2, 0x01020300+uint32(n), dst, 13, src.part(3, n)...))
		e.getsImm(c.b, 1, verbs.WCRecvRDMAWithImm, n, 0x01020300+uint32(n))
		// B sees the bytes once its receive completed; A need not have completed.
		e.holds(dst, 13, payload(uint64(n), n))
		e.done(c.a, 2, verbs.WCRDMAWrite)
	})
}

// WRITE_WITH_IMM does not touch the buffer of the receive it consumes.
func writeImmediateIgnoresBuffer(e *env) {
	c := e.rc()
	src, dst, unused := e.filled(e.a, 1, 64), e.buf(e.b, 64), e.painted(e.b, 8)
	e.postRecv(c.b, recv(1, unused.sge(0, 8))) // shorter than the message, which is valid
	e.carry(c, writeImm(2, 5, dst, 0, src.sge(0, 64)), 1)
	e.same(dst.bytes(), payload(1, 64))
	e.untouched(unused)
}

// A plain WRITE does not consume the peer's receives.
func writeConsumesNoReceive(e *env) {
	c := e.rc()
	src, dst := e.filled(e.a, 1, 64), e.buf(e.b, 128)
	e.postRecv(c.b, recv(1, dst.sge(64, 64)))
	e.do(c.a, write(2, dst, 0, src.sge(0, 64)), write(3, dst, 0), send(4, src.sge(0, 64)))
	e.gets(c.b, 1, 64)
	e.expectEmpty(c.b.cq)
	e.same(dst.bytes()[:64], payload(1, 64))
	e.same(dst.bytes()[64:], payload(1, 64))
}

// The key and address of an empty WRITE or READ are ignored (IBTA C9-88).
func writeZeroLength(e *env) {
	c := e.rc()
	w, r := send(1), send(2)
	w.Opcode, w.RKey, w.RemoteAddr = verbs.OpRDMAWrite, 0xbadbad, 8
	r.Opcode, r.RKey, r.RemoteAddr = verbs.OpRDMARead, 0xbadbad, 8
	e.post(c.a, w, r)
	e.done(c.a, 1, verbs.WCRDMAWrite)
	e.done(c.a, 2, verbs.WCRDMARead)
	e.fence(c)
}

// The first and the last byte of a region belong to it.
func writeWholeRegion(e *env) {
	const size = 10007
	c := e.rc()
	src, dst := e.filled(e.a, 1, size), e.buf(e.b, size)
	e.do(c.a, write(1, dst, 0, src.sge(0, size)))
	e.same(dst.bytes(), payload(1, size))
	src.put(0, []byte{1, 2})
	e.do(c.a, write(2, dst, 0, src.sge(0, 1)), write(3, dst, size-1, src.sge(1, 1)))
	if dst.bytes()[0] != 1 || dst.bytes()[size-1] != 2 {
		e.Errorf("first and last byte = %d, %d, want 1, 2", dst.bytes()[0], dst.bytes()[size-1])
	}
	e.same(dst.bytes()[1:size-1], payload(1, size)[1:size-1])
}

// The elements of a WRITE are gathered in order into one range.
func writeGather(e *env) {
	k := e.sgeLimit()
	c := e.conn(connConfig{sges: k})
	for _, n := range []int{64, 10001} {
		src, dst := e.buf(e.a, n+64), e.painted(e.b, n+32)
		e.do(c.a, write(1, dst, 5, src.spread(k, payload(uint64(n), n))...))
		e.holds(dst, 5, payload(uint64(n), n))
	}
}

// An inline WRITE copies its data at post time.
func writeInline(e *env) {
	n := e.inlineSize()
	c := e.conn(connConfig{inline: n})
	src, dst := e.buf(e.a, n), e.painted(e.b, 16*n+32)
	var want []byte
	for i := range 16 {
		src.put(0, payload(uint64(i), n))
		want = append(want, payload(uint64(i), n)...)
		e.post(c.a, flagged(write(uint64(i), dst, 9+i*n, src.sge(0, n)), verbs.SendInline))
	}
	e.doneFrom(c.a, 0, 16, verbs.WCRDMAWrite)
	e.holds(dst, 9, want)
}

// WRITEs to the same address take effect in posting order (IBTA 9.5).
func writeLastOneWins(e *env) {
	const count, size = 32, 300
	c := e.rc()
	src, dst := e.filled(e.a, 1, count*size), e.buf(e.b, size)
	e.do(c.a, chain(count, func(i int) verbs.SendWR {
		return write(uint64(i), dst, 0, src.sge(i*size, size))
	})...)
	e.same(dst.bytes(), payload(1, count*size)[(count-1)*size:])
}

// The target program is passive: WRITEs, READs and atomics are served even if its queues have no
// capacity and it never polls.
func writePassiveTarget(e *env) {
	e.needAtomics()
	cq := e.newCQ(e.b, 1, nil)
	target := e.newQP(e.b, verbs.QPConfig{Type: verbs.RC, SendCQ: cq, RecvCQ: cq})
	c := &conn{a: e.newQP(e.a, verbs.QPConfig{Type: verbs.RC, MaxSendWR: 64, MaxRecvWR: 1}), b: target}
	e.connect(c, connConfig{})
	local, remote := e.buf(e.a, 2048), e.buf(e.b, 1024)
	local.put(0, payload(1, 1024))
	for i := range uint64(20) {
		e.do(c.a, write(3*i, remote, 0, local.sge(0, 1024)), fetchAdd(3*i+1, remote, 0, 0, local.sge(1024, 8)),
			read(3*i+2, remote, 0, local.sge(1024, 1024)))
		e.same(local.bytes()[1024:], payload(1, 1024))
	}
}
