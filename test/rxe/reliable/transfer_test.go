package reliable_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"ibverbx/reliable"
	"ibverbx/verbs"
)

// mostRead is the maximum size of a READ. READs use an rxe RC QP, which retransmits from the first missing
// packet, six times: on a busy machine a long READ may fail with RETRY_EXC.
const mostRead = 60_000

// TestTransfer transfers every kind of message over wrapped rxe devices that lose 1 % of the
// packets, and compares every byte.
func TestTransfer(t *testing.T) {
	const size = 200_000
	lose(t, "net0", "net1")
	a, b := newPair(t, onePacket(), size)
	for _, n := range []int{0, 1, 4000, 4001, 60_000, size} {
		for op := verbs.OpRDMAWrite; op <= verbs.OpRDMARead; op++ {
			if op == verbs.OpRDMARead && n > mostRead {
				continue
			}
			t.Run(fmt.Sprintf("%v/%d", op, n), func(t *testing.T) { transfer(t, a, b, op, n) })
		}
	}
	t.Run("atomics", func(t *testing.T) { atomics(t, a, b) })
	t.Logf("A: %+v", a.qp.(reliable.StatsReader).Stats())
}

// TestTransferDatagrams is TestTransfer over UD, with the devices' UC and RC QPs unused.
func TestTransferDatagrams(t *testing.T) {
	const size = 200_000
	lose(t, "net0", "net1")
	cfg := onePacket()
	cfg.Carrier, cfg.ChunkBytes = verbs.UD, 0
	a, b := newPair(t, cfg, size)
	for _, n := range []int{0, 1, 4000, 4001, 60_000, size} {
		for op := verbs.OpRDMAWrite; op <= verbs.OpRDMARead; op++ {
			t.Run(fmt.Sprintf("%v/%d", op, n), func(t *testing.T) { transfer(t, a, b, op, n) })
		}
	}
	t.Run("atomics", func(t *testing.T) { atomics(t, a, b) })
	if s := a.qp.(reliable.StatsReader).Stats(); s.Malformed != 0 {
		t.Errorf("datagrams of the peer were refused: %+v", s)
	}
}

func transfer(t *testing.T, a, b *side, op verbs.Opcode, n int) {
	a.fill(byte(op) + byte(n))
	b.fill(200)
	from, to := a, b
	if op == verbs.OpRDMARead {
		from, to = b, a
	}
	want := bytes.Clone(from.mem.Bytes()[:n])
	takes := op == verbs.OpRDMAWriteWithImm || op == verbs.OpSend || op == verbs.OpSendWithImm
	if takes {
		recv := verbs.RecvWR{WRID: 7}
		recv.SetSGE(b.sge(0, n))
		if k, err := b.qp.PostRecv([]verbs.RecvWR{recv}); k != 1 {
			t.Fatalf("PostRecv = %d, %v, want 1", k, err)
		}
	}
	wr := verbs.SendWR{WRID: 9, Opcode: op, Flags: verbs.SendSignaled, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(), Imm: 0xfedcba98}
	if n > 1 {
		wr.SetSGE(a.sge(0, n/3), a.sge(n/3, n-n/3))
	} else {
		wr.SetSGE(a.sge(0, n))
	}
	a.post(t, wr)
	if wc := a.wait(t, "the request", 1)[0]; wc.WRID != 9 || wc.Opcode != op.WC() || wc.QPN != a.qp.Num() {
		t.Fatalf("completion %+v, want that of 9", wc)
	}
	if takes {
		wc := b.wait(t, "the receive", 1)[0]
		withImm := wc.Flags&verbs.WCWithImm != 0
		if wc.WRID != 7 || int(wc.ByteLen) != n || withImm != (op != verbs.OpSend) || (withImm && wc.Imm != 0xfedcba98) {
			t.Fatalf("receive %+v, want 7 with %d bytes and the immediate", wc, n)
		}
	}
	if got := to.mem.Bytes()[:n]; !bytes.Equal(got, want) {
		t.Fatalf("%d bytes arrived and differ from those sent", n)
	}
}

// atomics adds and swaps behind WRITEs of the same word: each fetches the preceding value.
func atomics(t *testing.T, a, b *side) {
	const rounds = 10
	ne := binary.NativeEndian
	ne.PutUint64(b.mem.Bytes(), 5)
	for i := range rounds {
		add := verbs.SendWR{Opcode: verbs.OpAtomicFetchAndAdd, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(), CompareAdd: 3}
		add.SetSGE(a.sge(64+16*i, 8))
		a.post(t, add)
		swap := verbs.SendWR{
			Opcode: verbs.OpAtomicCmpAndSwp, Flags: verbs.SendSignaled, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(),
			CompareAdd: uint64(8 + 2*i), Swap: uint64(7 + 2*i),
		}
		swap.SetSGE(a.sge(72+16*i, 8))
		a.post(t, swap)
	}
	a.wait(t, "atomics", rounds)
	for i := range rounds {
		// 5, plus 3 and minus 1 in each round.
		got, want := ne.Uint64(a.mem.Bytes()[64+16*i:]), uint64(5+2*i)
		if got != want {
			t.Errorf("round %d: the addition found %d, want %d", i, got, want)
		}
		if got := ne.Uint64(a.mem.Bytes()[72+16*i:]); got != want+3 {
			t.Errorf("round %d: the swap found %d, want %d", i, got, want+3)
		}
	}
	if got := ne.Uint64(b.mem.Bytes()); got != 5+2*rounds {
		t.Errorf("the word is %d in the end, want %d", got, 5+2*rounds)
	}
}
