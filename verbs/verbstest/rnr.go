package verbstest

import "ibverbx/verbs"

var rnrTests = []test{
	{"WaitsForReceive", rnrWaits},
	{"WriteWithImmOnce", rnrWriteImm},
	{"LongMessage", rnrLongMessage},
	{"OrderKept", rnrOrderKept},
	{"WritesAreNotHeldBack", rnrWritesBefore},
	{"OthersGoOn", rnrOthersGoOn},
}

// With rnr_retry 7, a sender waits until a receive is posted, and the message is delivered once
// (IBTA 9.7, RNR NAK).
func rnrWaits(e *env) {
	c, other := e.rc(), e.rc()
	src, dst := e.filled(e.a, 1, 64), e.painted(e.b, 128)
	e.post(c.a, send(1, src.sge(0, 64)))
	e.fence(other)
	e.expectEmpty(c.a.cq, c.b.cq)
	e.postRecv(c.b, recv(11, dst.sge(0, 64)), recv(12, dst.sge(64, 64)))
	e.gets(c.b, 11, 64)
	e.done(c.a, 1, verbs.WCSend)
	e.holds(dst, 0, payload(1, 64))
	// The second receive is posted for the second message only.
	e.carry(c, sendImm(2, 22, src.sge(0, 8)), 12)
	e.inState(c.a, verbs.StateRTS)
}

// WRITE_WITH_IMM waits for a receive in the same way, and its immediate is delivered
// once.
func rnrWriteImm(e *env) {
	c, other := e.rc(), e.rc()
	src, dst := e.filled(e.a, 1, 64), e.buf(e.b, 64)
	e.post(c.a, writeImm(1, 5, dst, 0, src.sge(0, 64)))
	e.fence(other)
	e.expectEmpty(c.a.cq)
	e.postRecv(c.b, recv(11), recv(12))
	e.getsImm(c.b, 11, verbs.WCRecvRDMAWithImm, 64, 5)
	e.done(c.a, 1, verbs.WCRDMAWrite)
	e.same(dst.bytes(), payload(1, 64))
	e.carry(c, sendImm(2, 6), 12)
}

// A message of many packets arrives complete after an RNR wait.
func rnrLongMessage(e *env) {
	const size = 100001
	c, other := e.rc(), e.rc()
	src, dst := e.buf(e.a, size), e.buf(e.b, size+16)
	for round := range uint64(3) {
		src.put(0, payload(round, size))
		dst.paint()
		e.post(c.a, send(round, src.sge(0, size)))
		e.fence(other)
		e.postRecv(c.b, recv(100+round, dst.sge(8, size)))
		e.gets(c.b, 100+round, size)
		e.done(c.a, round, verbs.WCSend)
		e.holds(dst, 8, payload(round, size))
	}
}

// Waiting messages keep their order.
func rnrOrderKept(e *env) {
	const count = 24
	c := e.rc()
	for i := range uint64(count) {
		e.post(c.a, sendImm(i, uint32(i)))
	}
	for i := uint64(0); i < count; i += 3 {
		e.postRecv(c.b, recv(i), recv(i+1), recv(i+2))
		for j := range uint64(3) {
			e.getsImm(c.b, i+j, verbs.WCRecv, 0, uint32(i+j))
		}
	}
	e.doneFrom(c.a, 0, count, verbs.WCSend)
}

// Requests posted before a waiting SEND are executed without delay.
func rnrWritesBefore(e *env) {
	c := e.rc()
	src, dst := e.filled(e.a, 1, 64), e.buf(e.b, 64)
	e.post(c.a, write(1, dst, 0, src.sge(0, 64)), send(2), write(3, dst, 0, src.sge(0, 1)))
	e.done(c.a, 1, verbs.WCRDMAWrite)
	e.same(dst.bytes(), payload(1, 64))
	e.expectEmpty(c.a.cq)
	e.postRecv(c.b, recv(11))
	e.done(c.a, 2, verbs.WCSend)
	e.done(c.a, 3, verbs.WCRDMAWrite)
	e.gets(c.b, 11, 0)
}

// A waiting connection does not block others, in either direction.
func rnrOthersGoOn(e *env) {
	c, other := e.rc(), e.rc()
	e.post(c.a, send(1))
	e.exchange(other, 10000)
	e.exchange(c.back(), 10000)
	e.expectEmpty(c.a.cq)
	e.postRecv(c.b, recv(11))
	e.gets(c.b, 11, 0)
	e.done(c.a, 1, verbs.WCSend)
}
