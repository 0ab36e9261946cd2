package softnic

import (
	"encoding/binary"
	"testing"
	"time"

	"ibverbx/internal/roce"
	"ibverbx/verbs"
)

// TestDuplicateAtomicNewestResult: PSNs wrap after 2^24 packets, so a responder may remember two atomics with
// the same PSN. A duplicate is answered with the newer result.
func TestDuplicateAtomicNewestResult(t *testing.T) {
	link := NewMemoryLink(&MemoryConfig{Now: func() int64 { return 0 }})
	a, b := pairOn(t, link, 64)
	qa, qb := a.qp(verbs.RC, 8), b.qp(verbs.RC, 8)
	join(t, qa, qb)
	atomic := func(want uint64) {
		t.Helper()
		wr := a.to(b, verbs.OpAtomicFetchAndAdd)
		wr.CompareAdd = 5
		post(t, qa, wr)
		if wcs := a.poll(); len(wcs) != 1 || wcs[0].Status != verbs.StatusSuccess {
			t.Fatalf("completions = %+v, want one success", wcs)
		}
		if got := binary.NativeEndian.Uint64(a.mem.Bytes()); got != want {
			t.Fatalf("the atomic returned %d, want %d", got, want)
		}
	}
	psn := qa.snd
	atomic(0)
	// As if 2^24-1 one-packet WRITEs had followed.
	qa.snd, qa.una, qa.maxPSN, qb.epsn = psn, psn, psn, psn
	atomic(5)
	// The response was lost, and the request is retransmitted.
	qb.duplicate(&packet{
		path: qa.path, Header: roce.Header{
			Opcode: roce.OpFetchAdd, DestQPN: qb.num, PSN: psn,
			VA: b.mr.Addr(), RKey: b.mr.RKey(), SwapAdd: 5,
		},
	}, roce.OpFetchAdd)
	if qb.responses.Len() == 0 {
		t.Fatal("the duplicate is not answered")
	}
	if got := qb.responses.Front().original; got != 5 {
		t.Errorf("the duplicate is answered with %d, want 5", got)
	}
	if got := binary.NativeEndian.Uint64(b.mem.Bytes()); got != 10 {
		t.Errorf("memory holds %d after two additions of 5 and a duplicate, want 10", got)
	}
}

// TestAckNamesNoAnswer: an ACK carries the PSN of the last SEND or WRITE, never of a later READ or
// atomic. The kernel's Soft-RoCE would mistake that for the whole response, and complete an atomic
// without its result if the result is late or lost.
func TestAckNamesNoAnswer(t *testing.T) {
	var now int64
	link, err := NewFaultLink(&FaultConfig{Now: func() int64 { return now }})
	check(t, err)
	a, b := pairOn(t, link, 64)
	qa, qb := a.qp(verbs.RC, 8), b.qp(verbs.RC, 8)
	join(t, qa, qb)
	want := qb.epsn.Add(roce.PSNMask)
	if got := qb.ackPSN(); got != want {
		t.Fatalf("before all requests PSN %#x is acknowledged, want %#x", got, want)
	}
	for _, op := range []verbs.Opcode{
		verbs.OpRDMAWrite, verbs.OpAtomicFetchAndAdd, verbs.OpRDMARead, verbs.OpRDMARead, verbs.OpAtomicCmpAndSwp, verbs.OpRDMAWrite,
	} {
		wr := a.to(b, op)
		if op == verbs.OpRDMARead {
			wr.SetSGE(a.sge(0, 3*4096)) // of several PSNs
		}
		post(t, qa, wr)
		settleLink(t, link, &now)
		if wcs := a.poll(); len(wcs) != 1 || wcs[0].Status != verbs.StatusSuccess {
			t.Fatalf("%v: completions = %+v, want one success", op, wcs)
		}
		if op == verbs.OpRDMAWrite {
			want = qb.epsn.Add(roce.PSNMask)
		}
		if got := qb.ackPSN(); got != want {
			t.Fatalf("after %v PSN %#x is acknowledged, want %#x, of the last WRITE", op, got, want)
		}
	}
}

// TestDuplicateReadOfClosedRegion: a program may close a region once the peer has completed its READs, even while a
// duplicate of one, such as a probe, still awaits its response.
func TestDuplicateReadOfClosedRegion(t *testing.T) {
	var now int64
	const size = 5 * 4096
	link, err := NewFaultLink(&FaultConfig{Queue: 2, ProbeAfter: 100 * time.Microsecond, Now: func() int64 { return now }})
	check(t, err)
	a, b := pairOn(t, link, size)
	check(t, link.Impair(b.nic, a.nic, Impairment{Delay: time.Millisecond}))
	qa, qb := a.qp(verbs.RC, 8), b.qp(verbs.RC, 8)
	join(t, qa, qb)
	wr := a.to(b, verbs.OpRDMARead)
	wr.SetSGE(a.sge(0, size))
	post(t, qa, wr)
	var wcs []verbs.WC
	for pending := true; len(wcs) == 0 && pending; wcs = a.poll() {
		var next int64
		next, pending = link.Step()
		now = max(now, next)
	}
	if len(wcs) != 1 || wcs[0].Status != verbs.StatusSuccess || qb.responses.Len() == 0 {
		t.Fatalf("completions = %+v, and %d pending responses, want a success and some responses", wcs, qb.responses.Len())
	}
	check(t, b.mr.Close())
	settleLink(t, link, &now)
	if qa.state != verbs.StateRTS || qb.state != verbs.StateRTS {
		t.Errorf("the QPs are in %v and %v, want %v", qa.state, qb.state, verbs.StateRTS)
	}
}
