//go:build !race

package softnic_test

import (
	"testing"

	"ibverbx/softnic"
	"ibverbx/verbs"
)

// TestNoAllocations: the hot path does not allocate. The test is skipped under the race detector, which
// allocates.
func TestNoAllocations(t *testing.T) {
	r := newRig(t, softnic.NewMemoryLink(nil))
	_, src := memory(t, r.pa, 4096)
	_, dst := memory(t, r.pb, 4096)
	cqA, cqB := newCQ(t, r.ca, 64), newCQ(t, r.cb, 64)
	qa, qb := r.pair(verbs.RC, cqA, cqB, 64)
	wcs := make([]verbs.WC, 64)
	recvs := make([]verbs.RecvWR, 1)
	recvs[0].SetSGE(verbs.SGE{Addr: dst.Addr(), Length: 4096, LKey: dst.LKey()})
	for _, op := range []verbs.Opcode{
		verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm, verbs.OpSend, verbs.OpSendWithImm,
		verbs.OpRDMARead, verbs.OpAtomicFetchAndAdd, verbs.OpAtomicCmpAndSwp,
	} {
		t.Run(op.String(), func(t *testing.T) {
			wrs := make([]verbs.SendWR, 8)
			for i := range wrs {
				wrs[i] = writeWR(src, dst, 8)
				wrs[i].Opcode = op
			}
			takesRecv := op == verbs.OpRDMAWriteWithImm || op == verbs.OpSend || op == verbs.OpSendWithImm
			allocs := testing.AllocsPerRun(100, func() {
				for range wrs {
					if takesRecv {
						if n, err := qb.PostRecv(recvs); n != 1 {
							t.Fatal(err)
						}
					}
				}
				if n, err := qa.PostSend(wrs); n != len(wrs) {
					t.Fatal(err)
				}
				if n, err := cqA.Poll(wcs); n != len(wrs) || err != nil || wcs[0].Status != verbs.StatusSuccess {
					t.Fatal(n, err, wcs[0].Err())
				}
				if n, err := cqB.Poll(wcs); err != nil || (takesRecv && n != len(wrs)) {
					t.Fatal(n, err)
				}
			})
			if allocs != 0 {
				t.Errorf("%v allocations for a chain of %d, want 0", allocs, len(wrs))
			}
		})
	}
	t.Run("full queue", func(t *testing.T) {
		wrs := make([]verbs.SendWR, 65)
		for i := range wrs {
			wrs[i] = writeWR(src, dst, 8)
		}
		allocs := testing.AllocsPerRun(100, func() {
			if n, err := qa.PostSend(wrs); n != 64 || err != verbs.ErrQueueFull { //nolint:errorlint // it must be unwrapped
				t.Fatal(n, err)
			}
			if n, err := cqA.Poll(wcs); n != 64 || err != nil {
				t.Fatal(n, err)
			}
		})
		if allocs != 0 {
			t.Errorf("%v allocations, want 0", allocs)
		}
	})
}

// TestNoAllocationsGates: gates open and shut without allocations.
func TestNoAllocationsGates(t *testing.T) {
	link := softnic.NewMemoryLink(nil)
	softnic.SetLoose(link, 0)
	r := newRig(t, link)
	_, src := memory(t, r.pa, 8)
	_, dst := memory(t, r.pb, 8)
	cq := newCQ(t, r.ca, 64)
	q, _ := r.pair(verbs.RC, cq, newCQ(t, r.cb, 64), 64)
	wrs, wcs := []verbs.SendWR{writeWR(src, dst, 8)}, make([]verbs.WC, 1)
	allocs := testing.AllocsPerRun(100, func() {
		if n, err := q.PostSend(wrs); n != 1 {
			t.Fatal(err)
		}
		if n, err := cq.Poll(wcs); n != 1 {
			t.Fatal(err)
		}
		r.a.SetPort(true) // the port is already up, but the call shuts the gates
	})
	if allocs != 0 {
		t.Errorf("%v allocations to open and shut gates, want 0", allocs)
	}
}
