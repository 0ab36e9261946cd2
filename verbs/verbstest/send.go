package verbstest

import "ibverbx/verbs"

var sendTests = []test{
	{"Sizes", sendEverySize},
	{"ExactFit", sendExactFit},
	{"Immediate", sendImmediate},
	{"ZeroLength", sendZeroLength},
	{"GatherScatter", sendGatherScatter},
	{"Inline", sendInline},
	{"InlineUnregistered", sendInlineUnregistered},
	{"InlineGather", sendInlineGather},
	{"ManyInOrder", sendManyInOrder},
	{"BothDirections", sendBothDirections},
}

// Messages of all sizes arrive complete, report their length, and touch no other memory.
func sendEverySize(e *env) { e.sendSizes(e.rc()) }

func (e *env) sendSizes(c *conn) {
	e.eachSize(c, func(e *env, n int, src, dst *buf) {
		e.message(c, recv(1, dst.sge(7, n+9)), send(2, src.part(3, n)...))
		e.holds(dst, 7, payload(uint64(n), n))
	})
}

// A message may fill the receive to the last byte.
func sendExactFit(e *env) {
	c := e.rc()
	for _, n := range []int{1, 4096, 10000} {
		src, dst := e.filled(e.a, uint64(n), n), e.buf(e.b, n)
		e.message(c, recv(1, dst.sge(0, n)), send(2, src.sge(0, n)))
		e.same(dst.bytes(), payload(uint64(n), n))
	}
}

// SEND_WITH_IMM carries a number in host order; SEND carries none.
func sendImmediate(e *env) { e.immediates(e.rc()) }

func (e *env) immediates(c *conn) {
	e.Helper()
	src, dst := e.filled(e.a, 1, 16), e.buf(e.b, 16)
	for i, imm := range []uint32{0, 1, 0x01020304, 0xfffffffe} {
		n := 4 * i // the first is empty
		e.postRecv(c.b, recv(1, dst.sge(0, 16)), recv(2, dst.sge(0, 16)))
		e.do(c.a, sendImm(3, imm, src.part(0, n)...), send(4, src.part(0, n)...))
		e.getsImm(c.b, 1, verbs.WCRecv, n, imm)
		e.gets(c.b, 2, n)
		e.same(dst.bytes()[:n], payload(1, 16)[:n])
	}
}

// An empty message consumes a receive, with or without a buffer.
func sendZeroLength(e *env) {
	c := e.rc()
	dst := e.painted(e.b, 16)
	e.postRecv(c.b, recv(1), recv(2, dst.sge(0, 16)))
	e.do(c.a, send(3), send(4))
	e.gets(c.b, 1, 0)
	e.gets(c.b, 2, 0)
	e.untouched(dst)
}

// ragged cuts n bytes at off into k elements of different lengths, in reverse memory order with
// gaps between them, and returns them with the position of each.
func (b *buf) ragged(off, n, k int) (sges []verbs.SGE, places [][2]int) {
	left, pos := n, off+n+8*k
	for i := range k {
		m := min(left, n/k+i-1)
		if i == k-1 {
			m = left
		}
		pos -= m + 8
		sges, places = append(sges, b.sge(pos, m)), append(places, [2]int{pos, m})
		left -= m
	}
	return sges, places
}

// spread stores p in k elements of the memory, cut as ragged does.
func (b *buf) spread(k int, p []byte) []verbs.SGE {
	sges, places := b.ragged(0, len(p), k)
	for _, at := range places {
		b.put(at[0], p[:at[1]])
		p = p[at[1]:]
	}
	return sges
}

// gathered returns the first n bytes of the places in sequence, and paints over them.
func (b *buf) gathered(places [][2]int, n int) (p []byte) {
	for _, at := range places {
		m := min(at[1], n-len(p))
		p = append(p, b.bytes()[at[0]:][:m]...)
		b.paintAt(at[0], m)
	}
	return p
}

// Send elements are gathered in order and receive elements are filled in order; bytes between them
// are not touched.
func sendGatherScatter(e *env) {
	k := e.sgeLimit()
	c := e.conn(connConfig{sges: k})
	for _, n := range []int{64, 10001} {
		src, dst := e.buf(e.a, n+64), e.painted(e.b, n+128)
		// The receive has other elements than the send, and is longer than the message.
		sges, places := dst.ragged(1, n+17, k)
		e.message(c, recv(1, sges...), send(2, src.spread(k, payload(uint64(n), n))...))
		e.same(dst.gathered(places, n), payload(uint64(n), n))
		e.untouched(dst)
	}
}

// Inline data is copied at post time: the buffer may be reused when PostSend returns.
func sendInline(e *env) {
	limit := e.inlineSize()
	c := e.conn(connConfig{inline: limit})
	src, dst := e.buf(e.a, limit), e.buf(e.b, limit)
	for _, n := range []int{0, 1, limit / 2, limit} {
		want := payload(uint64(n), n)
		src.put(0, want)
		dst.paint()
		e.post(c.a, flagged(send(2, src.part(0, n)...), verbs.SendInline))
		src.paint() // before a receive is posted
		e.postRecv(c.b, recv(1, dst.sge(0, limit)))
		e.done(c.a, 2, verbs.WCSend)
		e.gets(c.b, 1, n)
		e.holds(dst, 0, want)
	}
}

// The keys of inline elements are ignored, so the memory need not be registered
// (ibv_post_send(3)).
func sendInlineUnregistered(e *env) {
	n := e.inlineSize()
	c := e.conn(connConfig{inline: n})
	mem, dst := e.memory(n), e.buf(e.b, n)
	copy(mem.Bytes(), payload(4, n))
	e.message(c, recv(1, dst.sge(0, n)),
		flagged(send(2, verbs.SGE{Addr: mem.Addr(), Length: uint32(n), LKey: 0xbadbad}), verbs.SendInline))
	e.same(dst.bytes(), payload(4, n))
}

// Inline data is gathered like other data.
func sendInlineGather(e *env) {
	n, k := e.inlineSize(), e.sgeLimit()
	c := e.conn(connConfig{inline: n, sges: k})
	src, dst := e.buf(e.a, n+64), e.buf(e.b, n)
	sges := src.spread(k, payload(8, n))
	e.message(c, recv(1, dst.sge(0, n)), flagged(send(2, sges...), verbs.SendInline))
	e.same(dst.bytes(), payload(8, n))
}

// Messages arrive in posting order, each in the next receive.
func sendManyInOrder(e *env) { e.inOrder(e.rc(), 60) }

// inOrder sends messages in one chain and checks that the receives get them in order. Requests
// returned by before, for a message's content, precede it.
func (e *env) inOrder(c *conn, count int, before ...func(content verbs.SGE) verbs.SendWR) {
	e.Helper()
	const size = 300
	src, dst := e.filled(e.a, 1, count*size), e.painted(e.b, count*size)
	var sends []verbs.SendWR
	for i := range count {
		e.postRecv(c.b, recv(uint64(i), dst.sge(i*size, size)))
		for _, wr := range before {
			sends = append(sends, wr(src.sge(i*size, size)))
		}
		sends = append(sends, sendImm(uint64(100+i), uint32(i), src.sge(i*size, size-i)))
	}
	e.do(c.a, sends...)
	for i, wc := range e.wait(c.b.cq, count) {
		e.receivedImm(wc, c.b, uint64(i), verbs.WCRecv, size-i, uint32(i))
		e.same(dst.bytes()[i*size:][:size-i], src.bytes()[i*size:][:size-i])
		e.guarded(dst, (i+1)*size-i, (i+1)*size)
	}
}

// Both ends of a connection can send concurrently.
func sendBothDirections(e *env) {
	const count, size = 16, 5000
	c := e.conn(connConfig{sendA: e.newCQ(e.a, 64, nil)})
	a, b := e.buf(e.a, 2*size), e.buf(e.b, 2*size)
	a.put(0, payload(1, size))
	b.put(0, payload(2, size))
	for i := range uint64(count) {
		e.postRecv(c.a, recv(i, a.sge(size, size)))
		e.postRecv(c.b, recv(i, b.sge(size, size)))
		e.post(c.a, send(100+i, a.sge(0, size)))
		e.post(c.b, silent(send(100+i, b.sge(0, size))))
	}
	for i := range uint64(count) {
		e.done(c.a, 100+i, verbs.WCSend)
		e.gets(c.a, i, size)
		e.gets(c.b, i, size)
	}
	e.same(a.bytes()[size:], payload(2, size))
	e.same(b.bytes()[size:], payload(1, size))
}
