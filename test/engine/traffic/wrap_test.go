//go:build !race

// The race detector would need a minute to count through the sixteen million numbers, and these tests have a
// single goroutine.

package traffic_test

import (
	"testing"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/internal/testslice"
	"ibverbx/verbs"
)

const numbers = 1<<24 - 1 // the number of DQPLB numbers

// pickWrap skips one of the two tests below in a slice, because each counts to 2^24.
func pickWrap(t *testing.T, i int) {
	t.Helper()
	if !testslice.Of(t).AtMost(2).Has(i, 2) {
		t.Skip("a slice wraps the numbers of one side")
	}
}

// TestDQPLBSenderWraps: the number after 0xFFFFFE is 0, and 0xFFFFFF is never used.
func TestDQPLBSenderWraps(t *testing.T) {
	pickWrap(t, 0)
	x := enginetest.NewFreeScriptedQP(t, ibverbx.Config{Lanes: 2, Scheme: ibverbx.DQPLB, FragmentSize: 1, LaneDepth: 1024, NotifyDepth: 1024})
	wr := x.Request(0, verbs.OpRDMAWriteWithImm, 1<<20)
	const before = 3
	for left := uint32(numbers - before); left > 0; {
		wr.SGE[0].Length = min(left, 1<<20)
		left -= wr.SGE[0].Length
		finish(t, x, wr)
	}
	for _, q := range x.NIC.QPs() {
		q.Hold()
	}
	wr.SGE[0].Length = 8
	x.PostSend(wr)
	got := make(map[uint32]bool)
	for _, q := range x.NIC.QPs() {
		for i := range q.Taken {
			n, last := enginetest.DQPLBNumber(q.Taken[i].Imm)
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

// finish posts a request and polls until it has completed.
func finish(t *testing.T, x *enginetest.ScriptedQP, wr ibverbx.SendWR) {
	t.Helper()
	x.PostSend(wr)
	var wcs [64]ibverbx.WC
	for range 1_000_000 {
		n, err := x.CQ.Poll(wcs[:])
		enginetest.Must(t, err)
		if n == 1 && wcs[0].Err() == nil {
			return
		}
		if n != 0 {
			t.Fatalf("completions = %+v, %v; want one success", wcs[:n], wcs[0].Err())
		}
	}
	t.Fatal("the request does not end")
}

// TestDQPLBReceiverWraps: the receiver accepts 0 after 0xFFFFFE, in order and out of order.
func TestDQPLBReceiverWraps(t *testing.T) {
	pickWrap(t, 1)
	x := enginetest.NewFreeScriptedQP(t, ibverbx.Config{Lanes: 2, Scheme: ibverbx.DQPLB, NotifyDepth: 8})
	lanes := x.NIC.QPs()[:2]
	var wcs [16]ibverbx.WC
	receive := func(n uint32, last bool) {
		wc := verbs.WC{Opcode: verbs.WCRecvRDMAWithImm, Flags: verbs.WCWithImm, Imm: enginetest.DQPLBImm(n, last), ByteLen: 1}
		if !lanes[n&1].Receive(wc) {
			t.Fatalf("no receive is posted for number %#x", n)
		}
	}
	for n := range uint32(numbers - 2) {
		receive(n, false)
		if n%4 == 3 {
			if k, err := x.CQ.Poll(wcs[:]); k != 0 || err != nil {
				t.Fatalf("Poll before number %#x = %d, %v; want nothing", n, k, err)
			}
		}
	}
	x.PostRecv(ibverbx.RecvWR{WRID: 1}, ibverbx.RecvWR{WRID: 2}, ibverbx.RecvWR{WRID: 3})
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
		n, err := x.CQ.Poll(wcs[:])
		if n != len(step.ends) || err != nil {
			t.Fatalf("after number %#x: Poll = %d, %v; want %d; Err = %v", step.n, n, err, len(step.ends), x.QP.Err())
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
