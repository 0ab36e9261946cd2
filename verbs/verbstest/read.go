package verbstest

import (
	"fmt"

	"ibverbx/verbs"
)

var readTests = []test{
	{"Sizes", readSizes},
	{"Scatter", readScatter},
	{"MoreThanOutstanding", readMoreThanOutstanding},
	{"SeesEarlierWrite", readSeesEarlierWrite},
	{"FenceHoldsSend", readFenceHoldsSend},
	{"FenceHoldsWrite", readFenceHoldsWrite},
	{"ReadOnlySource", readReadOnlySource},
	{"BothDirections", readBothDirections},
}

// READs of all sizes, from and to odd addresses, fetch the right bytes, report their length, and
// touch no other memory.
func readSizes(e *env) {
	c := e.rc()
	e.eachSize(c.back(), func(e *env, n int, src, dst *buf) {
		e.post(c.a, read(1, src, 3, dst.part(13, n)...))
		wc := e.waitOne(c.a.cq)
		e.ok(wc, c.a, 1, verbs.WCRDMARead)
		if wc.ByteLen != uint32(n) {
			e.Errorf("ByteLen = %d, want %d", wc.ByteLen, n)
		}
		e.holds(dst, 13, payload(uint64(n), n))
	})
}

// READ data is scattered over the elements in order.
func readScatter(e *env) {
	k := e.sgeLimit()
	c := e.conn(connConfig{sges: k})
	for _, n := range []int{64, 10001} {
		dst, src := e.painted(e.a, n+64), e.filled(e.b, uint64(n), n)
		sges, places := dst.ragged(1, n, k)
		e.do(c.a, read(1, src, 0, sges...))
		e.same(dst.gathered(places, n), payload(uint64(n), n))
		e.untouched(dst)
	}
}

// More READs than max_rd_atomic may be posted: the rest are deferred.
func readMoreThanOutstanding(e *env) {
	const count, size = 60, 5000
	for _, depth := range []uint8{1, 2, 255} {
		e.sub(fmt.Sprintf("depth=%d", depth), func(e *env) {
			limit := func(a *verbs.QPAttr) {
				a.MaxRdAtomic, a.MaxDestRdAtomic = min(a.MaxRdAtomic, depth), min(a.MaxDestRdAtomic, depth)
			}
			c := e.conn(connConfig{tweak: limit})
			dst, src := e.buf(e.a, count*size), e.filled(e.b, 1, count*size)
			e.do(c.a, chain(count, func(i int) verbs.SendWR {
				return read(uint64(i), src, i*size, dst.sge(i*size, size))
			})...)
			e.same(dst.bytes(), payload(1, count*size))
		})
	}
}

// A READ sees the data of an earlier WRITE on the same QP (IBTA 9.5).
func readSeesEarlierWrite(e *env) {
	const count, size = 16, 5000
	c := e.rc()
	src, back, remote := e.filled(e.a, 1, count*size), e.buf(e.a, count*size), e.buf(e.b, size)
	var wrs []verbs.SendWR
	for i := range count {
		wrs = append(wrs, silent(write(0, remote, 0, src.sge(i*size, size))), read(uint64(i), remote, 0, back.sge(i*size, size)))
	}
	e.post(c.a, wrs...)
	// A later WRITE may overtake an outstanding READ, so the READ may return either
	// content, or a mixture of them (IBTA 9.5: READs and later WRITEs are unordered
	// without a fence). No WRITE follows the last READ.
	e.doneFrom(c.a, 0, count, verbs.WCRDMARead)
	e.same(back.bytes()[(count-1)*size:], payload(1, count*size)[(count-1)*size:])
}

// A fenced SEND waits for earlier READs, so it may send the data they fetch.
func readFenceHoldsSend(e *env) {
	const size = 1 << 18
	c := e.rc()
	local, remote := e.buf(e.a, size), e.buf(e.b, 2*size)
	for round := range 4 {
		want := payload(uint64(round), size)
		remote.put(0, want)
		e.postRecv(c.b, recv(1, remote.sge(size, size)))
		e.do(c.a, silent(read(2, remote, 0, local.sge(0, size))), flagged(send(3, local.sge(0, size)), verbs.SendFence))
		e.gets(c.b, 1, size)
		e.same(remote.bytes()[size:], want)
	}
}

// A fenced WRITE does not overtake an earlier READ of the same address.
func readFenceHoldsWrite(e *env) {
	const size = 1 << 18
	c := e.rc()
	local, fetched, remote := e.buf(e.a, size), e.buf(e.a, size), e.buf(e.b, size)
	for round := range uint64(4) {
		before, after := payload(2*round, size), payload(2*round+1, size)
		remote.put(0, before)
		local.put(0, after)
		e.post(c.a, read(1, remote, 0, fetched.sge(0, size)), flagged(write(2, remote, 0, local.sge(0, size)), verbs.SendFence))
		e.done(c.a, 1, verbs.WCRDMARead)
		e.same(fetched.bytes(), before)
		e.done(c.a, 2, verbs.WCRDMAWrite)
		e.same(remote.bytes(), after)
	}
}

// The source of a READ needs only remote read access, and its target only local write access.
func readReadOnlySource(e *env) {
	c := e.rc()
	dst, src := e.bufWith(e.a.pd, 64, verbs.AccessLocalWrite), e.bufWith(e.b.pd, 64, verbs.AccessRemoteRead)
	src.put(0, payload(1, 64))
	e.do(c.a, read(1, src, 0, dst.sge(0, 64)))
	e.same(dst.bytes(), payload(1, 64))
}

// Both ends can read from each other concurrently.
func readBothDirections(e *env) {
	const count, size = 16, 20000
	c := e.rc()
	a, b := e.buf(e.a, 2*size), e.buf(e.b, 2*size)
	a.put(0, payload(1, size))
	b.put(0, payload(2, size))
	for i := range uint64(count) {
		e.post(c.a, read(i, b, 0, a.sge(size, size)))
		e.post(c.b, read(i, a, 0, b.sge(size, size)))
	}
	for i := range uint64(count) {
		e.done(c.a, i, verbs.WCRDMARead)
		e.done(c.b, i, verbs.WCRDMARead)
	}
	e.same(a.bytes()[size:], payload(2, size))
	e.same(b.bytes()[size:], payload(1, size))
}
