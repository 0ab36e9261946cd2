package interop_test

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"ibverbx/verbs"
)

// talk is a connection between a requester and a responder, with the expected memory contents of both.
type talk struct {
	t         *testing.T
	w         *world
	family    int
	asker     int  // index of the requester's side
	a, b      *end // requester and responder
	mtu       int
	rng       *rand.Rand
	want      [2][]byte  // expected memory of a and of b
	next      int        // offset of the next request
	posted    []asked    // outstanding requests
	silent    bool       // the last request is not notified
	delivered []verbs.WC // expected completions of outstanding receives
}

// newTalk connects a softnic to the kernel's device on wire 0. The two sides' memory differs initially, so
// that missing bytes are noticed.
func newTalk(t *testing.T, w *world, family, asker int, typ verbs.QPType, mtu verbs.MTU, change ...func(*verbs.QPAttr)) *talk {
	t.Helper()
	c := &talk{t: t, w: w, family: family, asker: asker, mtu: mtu.Bytes(), rng: rand.New(rand.NewPCG(uint64(typ), uint64(mtu)))}
	t.Cleanup(func() { w.tell(t, family) })
	var ends [2]*end
	for side := range sides {
		ctx, row := w.wires[0].open(t, family, side)
		ends[side] = newEnd(t, ctx, typ, row)
	}
	c.a, c.b = ends[asker], ends[1-asker]
	for i, e := range []*end{c.a, c.b} {
		c.want[i] = make([]byte, memory)
		for k := range c.want[i] {
			c.want[i][k] = byte(c.rng.Uint32())
		}
		copy(e.mem.Bytes(), c.want[i])
	}
	connect(t, c.a, c.b, mtu, change...)
	return c
}

// counter is the offset of the word that atomics change; request data lies behind it.
const counter = 64

// place returns an offset for n bytes, unused since the memory was last checked. It is sometimes
// odd.
func (c *talk) place(n int) int {
	if c.next == 0 || c.next+n+16 > memory {
		c.settle()
		c.next = 2 * counter
	}
	off := c.next + c.rng.IntN(8)
	c.next = off + n + 2 + c.rng.IntN(8)
	return off
}

// ask posts a request of n bytes and records its expected effect on both sides' memory.
func (c *talk) ask(op verbs.Opcode, n int) {
	c.t.Helper()
	src := c.place(n)
	dst := src ^ 1 // a different alignment
	wr := verbs.SendWR{Opcode: op, Imm: c.rng.Uint32(), RemoteAddr: c.b.mr.Addr() + uint64(dst), RKey: c.b.mr.RKey()}
	switch op {
	case verbs.OpAtomicFetchAndAdd, verbs.OpAtomicCmpAndSwp:
		c.atomic(&wr, src)
		n = 8
	case verbs.OpRDMARead:
		copy(c.want[0][src:], c.want[1][dst:dst+n])
	default:
		copy(c.want[1][dst:], c.want[0][src:src+n])
	}
	c.hear(op, dst, n, wr.Imm)
	c.a.send(wr, src, n)
	c.silent = op == verbs.OpRDMAWrite && c.a.qp.Type() == verbs.UC
	if c.posted = append(c.posted, asked{op, [2]int{src, dst}, n}); len(c.posted) == 32 {
		c.settle()
	}
}

// asked is a posted request: its operation, its offset on each side, and its length.
type asked struct {
	op verbs.Opcode
	at [2]int
	n  int
}

// hear posts the receive for a request, if it needs one.
func (c *talk) hear(op verbs.Opcode, dst, n int, imm uint32) {
	c.t.Helper()
	wc := verbs.WC{Opcode: verbs.WCRecv, ByteLen: uint32(n)}
	switch op {
	case verbs.OpSendWithImm:
		wc.Flags, wc.Imm = verbs.WCWithImm, imm
	case verbs.OpRDMAWriteWithImm:
		wc.Opcode, wc.Flags, wc.Imm = verbs.WCRecvRDMAWithImm, verbs.WCWithImm, imm
		dst, n = 0, 0
	case verbs.OpSend:
	default:
		return
	}
	c.b.recvAt(dst, n)
	c.delivered = append(c.delivered, wc)
}

// atomic turns wr into an atomic that may change the counter.
func (c *talk) atomic(wr *verbs.SendWR, src int) {
	wr.RemoteAddr = c.b.mr.Addr() + counter
	old := binary.NativeEndian.Uint64(c.want[1][counter:])
	binary.NativeEndian.PutUint64(c.want[0][src:], old)
	next := c.rng.Uint64()
	switch {
	case wr.Opcode == verbs.OpAtomicFetchAndAdd:
		wr.CompareAdd = next
		next += old
	case c.rng.IntN(2) == 0: // makes the comparison succeed
		wr.CompareAdd, wr.Swap = old, next
	default:
		wr.CompareAdd, wr.Swap = old+1+c.rng.Uint64N(1<<62), next
		next = old
	}
	binary.NativeEndian.PutUint64(c.want[1][counter:], next)
}

// settle waits for all completions and compares every byte of both sides' memory.
func (c *talk) settle() {
	c.t.Helper()
	if c.silent {
		c.ask(verbs.OpSend, 1) // received after all other requests
	}
	c.a.wait(len(c.posted), verbs.StatusSuccess)
	for i, wc := range c.b.wait(len(c.delivered), verbs.StatusSuccess) {
		got := verbs.WC{Opcode: wc.Opcode, Flags: wc.Flags & verbs.WCWithImm, Imm: wc.Imm, ByteLen: wc.ByteLen}
		if got.Flags == 0 {
			got.Imm = 0 // invalid in that case
		}
		if got != c.delivered[i] {
			c.t.Fatalf("receive %d says %+v, want %+v", i, got, c.delivered[i])
		}
	}
	for i, e := range []*end{c.a, c.b} {
		if got := e.mem.Bytes(); !bytes.Equal(got, c.want[i]) {
			c.blame(i, got)
		}
	}
	c.posted, c.delivered = c.posted[:0], c.delivered[:0]
}

// blame fails the test and lists the requests that cover a side's differing bytes.
func (c *talk) blame(side int, got []byte) {
	c.t.Helper()
	for k := 0; k < len(got); k++ {
		if got[k] == c.want[side][k] {
			continue
		}
		first := k
		for k++; k < len(got) && got[k] != c.want[side][k]; k++ {
		}
		c.t.Errorf("bytes %d to %d of the %s are %x, want %x", first, k-1, [2]string{"requester", "responder"}[side],
			got[first:min(k, first+8)], c.want[side][first:min(k, first+8)])
		for i, q := range c.posted {
			if at := q.at[side]; at < k && first < at+q.n {
				c.t.Errorf("they are bytes %d and on of request %d of %d, %v of %d bytes", max(first-at, 0), i, len(c.posted), q.op, q.n)
			}
		}
	}
	c.t.FailNow()
}

// lengths returns lengths around packet boundaries, with padding, and zero.
func (c *talk) lengths() []int {
	return []int{0, 1, 2, 3, 5, 64, c.mtu - 1, c.mtu, c.mtu + 1, 2*c.mtu - 3, 2 * c.mtu, 5*c.mtu + 6, 64<<10 + 7}
}

// every posts one operation in all lengths, in two rounds.
func (c *talk) every(op verbs.Opcode) {
	c.t.Helper()
	for range 2 {
		for _, n := range c.lengths() {
			c.ask(op, n)
		}
		c.settle()
	}
}

// mix posts count operations of all kinds that RC supports.
func (c *talk) mix(count int) {
	c.t.Helper()
	ops := []verbs.Opcode{
		verbs.OpSend, verbs.OpSendWithImm, verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm,
		verbs.OpRDMARead, verbs.OpAtomicFetchAndAdd, verbs.OpAtomicCmpAndSwp,
	}
	for range count {
		c.ask(ops[c.rng.IntN(len(ops))], c.rng.IntN(12*c.mtu))
	}
	c.settle()
}
