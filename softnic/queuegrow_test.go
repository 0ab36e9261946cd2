package softnic_test

import (
	"testing"

	"ibverbx/softnic"
	"ibverbx/verbs"
)

// TestQueuesGrow: queues start small. Inline sends wait for receives while the queue grows several times,
// with its cursors in the middle of the ring. All arrive once, in order, with the data they had when posted.
func TestQueuesGrow(t *testing.T) {
	const depth, first = 64, 3
	r := newRig(t, softnic.NewMemoryLink(nil))
	mem, src := memory(t, r.pa, 8)
	back, dst := memory(t, r.pb, (depth+first)*8)
	cqA, cqB := newCQ(t, r.ca, 256), newCQ(t, r.cb, 256)
	qa, qb := r.pair(verbs.RC, cqA, cqB, depth)
	send := func(i int) {
		mem.Bytes()[0] = byte(i)
		wr := verbs.SendWR{WRID: uint64(i), Opcode: verbs.OpSend, Flags: verbs.SendInline | verbs.SendSignaled, NumSGE: 1}
		wr.SGE[0] = verbs.SGE{Addr: src.Addr(), Length: 8, LKey: src.LKey()}
		if n, err := qa.PostSend([]verbs.SendWR{wr}); n != 1 || err != nil {
			t.Fatalf("send %d: PostSend = %d, %v", i, n, err)
		}
	}
	receive := func(from, to int) {
		for i := from; i < to; i++ {
			wr := verbs.RecvWR{WRID: uint64(i), NumSGE: 1}
			wr.SGE[0] = verbs.SGE{Addr: dst.Addr() + uint64(i)*8, Length: 8, LKey: dst.LKey()}
			if n, err := qb.PostRecv([]verbs.RecvWR{wr}); n != 1 || err != nil {
				t.Fatalf("receive %d: PostRecv = %d, %v", i, n, err)
			}
		}
	}
	wait := func(cq verbs.CQ, from, to int) {
		var wcs [1]verbs.WC
		for i := from; i < to; {
			n, err := cq.Poll(wcs[:])
			must(t, err)
			if n == 1 && (wcs[0].Err() != nil || wcs[0].WRID != uint64(i)) {
				t.Fatalf("completion %+v, want success of %d", wcs[0], i)
			}
			i += n
		}
	}
	receive(0, first)
	for i := range first {
		send(i)
	}
	wait(cqA, 0, first)
	wait(cqB, 0, first)
	for i := first; i < first+depth; i++ {
		send(i)
	}
	if n, err := qa.PostSend([]verbs.SendWR{{Opcode: verbs.OpSend}}); n != 0 || err == nil {
		t.Errorf("PostSend to a full queue = %d, %v; want an error", n, err)
	}
	receive(first, first+depth)
	wait(cqA, first, first+depth)
	wait(cqB, first, first+depth)
	for i := range first + depth {
		if got := back.Bytes()[i*8]; got != byte(i) {
			t.Errorf("message %d has byte %d", i, got)
		}
	}
}
