//go:build !race

// The race detector would need a minute for the sixteen million numbers that these tests
// count through, and has nothing to look for: they have one goroutine.

package ibverbx_test

import (
	"testing"

	"ibverbx"
	"ibverbx/internal/nullnic"
	"ibverbx/verbs"
)

const numbers = 1<<24 - 1 // how many numbers DQPLB has

// TestDQPLBSenderWraps: the number after 0xFFFFFE is 0, and 0xFFFFFF is never used.
func TestDQPLBSenderWraps(t *testing.T) {
	x := newFree(t, ibverbx.Config{Lanes: 2, Scheme: ibverbx.DQPLB, FragmentSize: 1, LaneDepth: 1024, NotifyDepth: 1024})
	wr := x.request(0, verbs.OpRDMAWriteWithImm, 1<<20)
	const before = 3
	for left := uint32(numbers - before); left > 0; {
		wr.SGE[0].Length = min(left, 1<<20)
		left -= wr.SGE[0].Length
		x.finish(t, wr)
	}
	for _, q := range x.nic.QPs() {
		q.Hold()
	}
	wr.SGE[0].Length = 8
	if n, err := x.qp.PostSend([]ibverbx.SendWR{wr}); n != 1 || err != nil {
		t.Fatalf("PostSend = %d, %v; want 1", n, err)
	}
	got := make(map[uint32]bool)
	for _, q := range x.nic.QPs() {
		for i := range q.Taken {
			n, last := dqplbNumber(q.Taken[i].Imm)
			got[n] = true
			if last != (n == 4) {
				t.Errorf("number %#x is that of the last fragment: %t", n, last)
			}
		}
	}
	for _, want := range []uint32{numbers - 3, numbers - 2, numbers - 1, 0, 1, 2, 3, 4} {
		if !got[want] {
			t.Errorf("number %#x is not on the wire: %v are", want, got)
		}
	}
	if len(got) != 8 {
		t.Errorf("%d numbers are on the wire, want 8: %v", len(got), got)
	}
}

// newFree is an instrument whose NIC completes everything at once.
func newFree(t *testing.T, cfg ibverbx.Config) *instrument {
	t.Helper()
	x := &instrument{nic: nullnic.New("null0", 0x11)}
	rails, err := ibverbx.NewRails(ibverbx.RailConfig{Context: x.nic})
	must(t, err)
	x.cq, err = rails.NewCQ(ibverbx.CQConfig{})
	must(t, err)
	x.qp, err = x.cq.NewQP(cfg)
	must(t, err)
	t.Cleanup(func() { must(t, x.qp.Close()) })
	card, err := x.qp.Card()
	must(t, err)
	must(t, x.qp.Connect(card))
	mem, err := verbs.AllocMemory(1<<20, nil)
	must(t, err)
	x.region, err = rails.Register(mem, verbs.AccessAll)
	must(t, err)
	t.Cleanup(func() { must(t, x.region.Close()); must(t, mem.Free()) })
	return x
}

// finish posts a request and polls until it has ended.
func (x *instrument) finish(t *testing.T, wr ibverbx.SendWR) {
	t.Helper()
	if n, err := x.qp.PostSend([]ibverbx.SendWR{wr}); n != 1 || err != nil {
		t.Fatalf("PostSend = %d, %v; want 1", n, err)
	}
	var wcs [64]ibverbx.WC
	for range 1_000_000 {
		n, err := x.cq.Poll(wcs[:])
		must(t, err)
		if n == 1 && wcs[0].Err() == nil {
			return
		}
		if n != 0 {
			t.Fatalf("completions = %+v, %v; want one success", wcs[:n], wcs[0].Err())
		}
	}
	t.Fatal("the request does not end")
}

// TestDQPLBReceiverWraps: the receiver takes 0 after 0xFFFFFE, in order and out of it.
func TestDQPLBReceiverWraps(t *testing.T) {
	x := newFree(t, ibverbx.Config{Lanes: 2, Scheme: ibverbx.DQPLB, NotifyDepth: 8})
	lanes := x.nic.QPs()[:2]
	var wcs [16]ibverbx.WC
	receive := func(n uint32, last bool) {
		wc := verbs.WC{Opcode: verbs.WCRecvRDMAWithImm, Flags: verbs.WCWithImm, Imm: dqplbImm(n, last), ByteLen: 1}
		if !lanes[n&1].Receive(wc) {
			t.Fatalf("no receive is posted for number %#x", n)
		}
	}
	for n := range uint32(numbers - 2) {
		receive(n, false)
		if n%4 == 3 {
			if k, err := x.cq.Poll(wcs[:]); k != 0 || err != nil {
				t.Fatalf("Poll before number %#x = %d, %v; want nothing", n, k, err)
			}
		}
	}
	if n, err := x.qp.PostRecv([]ibverbx.RecvWR{{WRID: 1}, {WRID: 2}, {WRID: 3}}); n != 3 || err != nil {
		t.Fatalf("PostRecv = %d, %v; want 3", n, err)
	}
	for _, step := range []struct {
		n    uint32
		last bool
		ends []uint64
	}{
		{1, true, nil},
		{0, true, nil},
		{numbers - 1, false, nil},
		{numbers - 2, false, []uint64{1, 2}},
		{3, true, nil},
		{2, false, []uint64{3}},
	} {
		receive(step.n, step.last)
		n, err := x.cq.Poll(wcs[:])
		if n != len(step.ends) || err != nil {
			t.Fatalf("after number %#x: Poll = %d, %v; want %d; Err = %v", step.n, n, err, len(step.ends), x.qp.Err())
		}
		for i, id := range step.ends {
			if wcs[i].WRID != id || wcs[i].Err() != nil {
				t.Errorf("completion %d = %+v, %v; want receive %d", i, wcs[i], wcs[i].Err(), id)
			}
			if want := []uint32{numbers + 1, 1, 2}[id-1]; wcs[i].ByteLen != want {
				t.Errorf("message of %d bytes, want %d", wcs[i].ByteLen, want)
			}
		}
	}
}
