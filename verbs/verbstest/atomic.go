package verbstest

import (
	"encoding/binary"
	"fmt"

	"ibverbx/verbs"
)

var atomicTests = []test{
	{"FetchAdd", atomicFetchAdd},
	{"CompareSwap", atomicCompareSwap},
	{"HostOrder", atomicHostOrder},
	{"Neighbours", atomicNeighbours},
	{"ManyOutstanding", atomicManyOutstanding},
	{"SumOverQPs", atomicSumOverQPs},
	{"OneWinner", atomicOneWinner},
	{"OrderWithWrite", atomicOrderWithWrite},
	{"Misaligned", atomicMisaligned},
	{"NoPermission", atomicNoPermission},
	{"OutOfBounds", atomicOutOfBounds},
}

// word is the number at off, in host order.
func (b *buf) word(off int) uint64 { return binary.NativeEndian.Uint64(b.bytes()[off:]) }

func (b *buf) putWord(off int, v uint64) { b.put(off, binary.NativeEndian.AppendUint64(nil, v)) }

// atomicOn executes w on the word at offset 16 of target, which holds old. The atomic must return
// old and store want.
func (e *env) atomicOn(c *conn, target *buf, w verbs.SendWR, old, want uint64) {
	e.Helper()
	result := e.buf(e.a, 8)
	w.SetSGE(result.sge(0, 8))
	target.putWord(16, old)
	e.post(c.a, w)
	wc := e.waitOne(c.a.cq)
	e.ok(wc, c.a, w.WRID, w.Opcode.WC())
	if got, left := result.word(0), target.word(16); got != old || left != want || wc.ByteLen != 8 {
		e.Errorf("%v(%#x, %#x) on %#x returned %#x in %d bytes and left %#x, want the old value in 8 bytes and %#x",
			w.Opcode, w.CompareAdd, w.Swap, old, got, wc.ByteLen, left, want)
	}
}

// FETCH_AND_ADD returns the old value and stores the sum, modulo 2^64.
func atomicFetchAdd(e *env) {
	e.needAtomics()
	c, target := e.rc(), e.buf(e.b, 64)
	for _, tt := range []struct{ old, add uint64 }{
		{0, 0},
		{0, 1},
		{41, 1},
		{1 << 40, 1<<40 + 3},
		{^uint64(0), 1},
		{^uint64(0), ^uint64(0)},
		{5, ^uint64(0)},
		{0x0102030405060708, 0x1000000000000000},
	} {
		e.atomicOn(c, target, fetchAdd(1, target, 16, tt.add, verbs.SGE{}), tt.old, tt.old+tt.add)
	}
}

// CMP_AND_SWP stores only if the old value equals the compare value, and returns the old value in
// either case.
func atomicCompareSwap(e *env) {
	e.needAtomics()
	c, target := e.rc(), e.buf(e.b, 64)
	for _, tt := range []struct{ old, compare, swap, want uint64 }{
		{0, 0, 1, 1},
		{7, 7, 0x0102030405060708, 0x0102030405060708},
		{7, 8, 99, 7},
		{1 << 63, 0, 99, 1 << 63},
		{^uint64(0), ^uint64(0), 0, 0},
		{0x0102030405060708, 0x0807060504030201, 99, 0x0102030405060708},
	} {
		e.atomicOn(c, target, compareSwap(1, target, 16, tt.compare, tt.swap, verbs.SGE{}), tt.old, tt.want)
	}
}

// Values are in host byte order on both sides: a WRITE, a READ and an atomic see the same bytes.
func atomicHostOrder(e *env) {
	e.needAtomics()
	c := e.rc()
	local, target := e.buf(e.a, 24), e.buf(e.b, 8)
	local.putWord(8, 0x1122334455667788)
	e.do(c.a, write(1, target, 0, local.sge(8, 8)), fetchAdd(2, target, 0, 0x10, local.sge(0, 8)),
		flagged(read(3, target, 0, local.sge(16, 8)), verbs.SendFence))
	if local.word(0) != 0x1122334455667788 || local.word(16) != 0x1122334455667798 {
		e.Errorf("fetched %#x, then read %#x, want 0x1122334455667788 and 0x1122334455667798", local.word(0), local.word(16))
	}
}

// An atomic touches only its 8 target bytes and 8 result bytes, the latter at any local address.
func atomicNeighbours(e *env) {
	e.needAtomics()
	c := e.rc()
	result, target := e.painted(e.a, 64), e.painted(e.b, 64)
	target.putWord(32, 5)
	e.do(c.a, fetchAdd(1, target, 32, 6, result.sge(11, 8)))
	e.holds(target, 32, binary.NativeEndian.AppendUint64(nil, 11))
	e.holds(result, 11, binary.NativeEndian.AppendUint64(nil, 5))
}

// More atomics than max_rd_atomic may be posted; each is executed once.
func atomicManyOutstanding(e *env) {
	e.needAtomics()
	const count = 60
	for _, depth := range []uint8{1, 255} {
		e.sub(fmt.Sprintf("depth=%d", depth), func(e *env) {
			c := e.conn(connConfig{tweak: func(a *verbs.QPAttr) {
				a.MaxRdAtomic, a.MaxDestRdAtomic = min(a.MaxRdAtomic, depth), min(a.MaxDestRdAtomic, depth)
			}})
			result, target := e.buf(e.a, 8*count), e.buf(e.b, 8)
			e.post(c.a, chain(count, func(i int) verbs.SendWR {
				return fetchAdd(uint64(i), target, 0, 3, result.sge(8*i, 8))
			})...)
			for i, wc := range e.wait(c.a.cq, count) {
				e.ok(wc, c.a, uint64(i), verbs.WCFetchAdd)
				if got := result.word(8 * i); got != uint64(3*i) {
					e.Fatalf("atomic %d fetched %d, want %d", i, got, 3*i)
				}
			}
			if got := target.word(0); got != 3*count {
				e.Errorf("sum = %d, want %d", got, 3*count)
			}
		})
	}
}

// Concurrent atomics of several QPs on one word are all applied: every old value is returned
// exactly once.
func atomicSumOverQPs(e *env) {
	e.needAtomics()
	const qps, each = 8, 30
	target := e.buf(e.b, 8)
	conns, results := make([]*conn, qps), make([]*buf, qps)
	for i := range conns {
		conns[i], results[i] = e.rc(), e.buf(e.a, 8*each)
	}
	for k := range each {
		for i, c := range conns {
			e.post(c.a, fetchAdd(uint64(k), target, 0, 1, results[i].sge(8*k, 8)))
		}
	}
	seen := map[uint64]bool{}
	for i, c := range conns {
		for k, wc := range e.wait(c.a.cq, each) {
			e.ok(wc, c.a, uint64(k), verbs.WCFetchAdd)
			if v := results[i].word(8 * k); seen[v] || v >= qps*each {
				e.Fatalf("atomic %d of QP %d fetched %d, which another one fetched or none stored", k, i, v)
			} else {
				seen[v] = true
			}
		}
	}
	if got := target.word(0); got != qps*each {
		e.Errorf("sum = %d, want %d", got, qps*each)
	}
}

// Of several CMP_AND_SWP from the same value, exactly one succeeds.
func atomicOneWinner(e *env) {
	e.needAtomics()
	const qps = 8
	target, result := e.buf(e.b, 8), e.buf(e.a, 8*qps)
	conns := make([]*conn, qps)
	for i := range conns {
		conns[i] = e.rc()
	}
	for i, c := range conns {
		e.post(c.a, compareSwap(1, target, 0, 0, uint64(100+i), result.sge(8*i, 8)))
	}
	winner := -1
	for i, c := range conns {
		e.done(c.a, 1, verbs.WCCompSwap)
		if result.word(8*i) == 0 {
			if winner >= 0 {
				e.Errorf("QPs %d and %d both found the old value 0", winner, i)
			}
			winner = i
		}
	}
	if winner < 0 || target.word(0) != uint64(100+winner) {
		e.Errorf("the word is %d and the winner is QP %d, want the winner's value", target.word(0), winner)
	}
}

// An atomic takes effect after earlier WRITEs and before later SENDs of its QP.
func atomicOrderWithWrite(e *env) {
	e.needAtomics()
	c := e.rc()
	local, target := e.buf(e.a, 16), e.buf(e.b, 8)
	local.putWord(0, 1000)
	e.postRecv(c.b, recv(1))
	e.post(c.a, silent(write(2, target, 0, local.sge(0, 8))), silent(fetchAdd(3, target, 0, 1, local.sge(8, 8))), send(4))
	e.gets(c.b, 1, 0)
	if got := target.word(0); got != 1001 {
		e.Errorf("word when the receive completed = %d, want 1001", got)
	}
	e.done(c.a, 4, verbs.WCSend)
	if got := local.word(8); got != 1000 {
		e.Errorf("fetched %d, want 1000", got)
	}
}

// An atomic on an address that is not a multiple of 8 is an invalid request (IBTA 9.4.5,
// atomic operations).
func atomicMisaligned(e *env) {
	e.needAtomics()
	for _, op := range []verbs.Opcode{verbs.OpAtomicFetchAndAdd, verbs.OpAtomicCmpAndSwp} {
		e.sub(op.String(), func(e *env) {
			c, result, target := e.rc(), e.buf(e.a, 8), e.painted(e.b, 64)
			e.failsRemotely(c, oneSided(op, 1, target, 4, result.sge(0, 8)), verbs.StatusRemInvReqErr)
			e.untouched(target)
		})
	}
}

// An atomic needs remote atomic access to the region; remote write is not enough.
func atomicNoPermission(e *env) {
	e.needAtomics()
	c, result := e.rc(), e.buf(e.a, 8)
	target := e.bufWith(e.b.pd, 64, verbs.AccessAll&^verbs.AccessRemoteAtomic)
	target.paint()
	e.failsRemotely(c, fetchAdd(1, target, 0, 1, result.sge(0, 8)), verbs.StatusRemAccessErr)
	e.untouched(target)
}

// An atomic outside the region, or with a wrong key, does not touch memory.
func atomicOutOfBounds(e *env) {
	e.needAtomics()
	for name, change := range map[string]func(w *verbs.SendWR){
		"end": func(w *verbs.SendWR) { w.RemoteAddr += 64 },
		"key": func(w *verbs.SendWR) { w.RKey ^= 0x5a5a5a5a },
	} {
		e.sub(name, func(e *env) {
			c, result, target := e.rc(), e.buf(e.a, 8), e.painted(e.b, 64)
			w := fetchAdd(1, target, 0, 1, result.sge(0, 8))
			change(&w)
			e.failsRemotely(c, w, verbs.StatusRemAccessErr)
			e.untouched(target)
		})
	}
}
