//go:build linux && !race

package softnic_test

import (
	"testing"
	"time"

	"ibverbx/verbs"
)

// TestShmNoAllocations: direct transfers, lines and packets over shared memory do not allocate.
func TestShmNoAllocations(t *testing.T) {
	x, y := shmPair(t, 64*kib)
	if !heapMemory {
		x.awaitPublished()
	}
	noAllocations(t, x, y)
}

// TestNeighborNoAllocations does the same between neighbors.
func TestNeighborNoAllocations(t *testing.T) {
	noRaces(t)
	cfg := near(time.Hour)
	x, y := nearPairWith(t, 64*kib, cfg, cfg)
	x.awaitPublished()
	noAllocations(t, x, y)
}

func noAllocations(t *testing.T, x, y *shmSide) {
	t.Helper()
	for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead, verbs.OpAtomicFetchAndAdd, verbs.OpRDMAWriteWithImm, verbs.OpSend} {
		for _, size := range []int{8, 64 * kib} {
			if op == verbs.OpAtomicFetchAndAdd && size > 8 {
				continue
			}
			wrs := make([]verbs.SendWR, 8)
			recvs := make([]verbs.RecvWR, len(wrs))
			for i := range wrs {
				wrs[i] = x.request(op, size)
				recvs[i].SetSGE(verbs.SGE{Addr: y.mr.Addr(), Length: uint32(size), LKey: y.mr.LKey()})
			}
			notified := op == verbs.OpRDMAWriteWithImm || op == verbs.OpSend
			allocs := testing.AllocsPerRun(50, func() {
				if notified {
					y.receive(recvs)
				}
				x.send(wrs)
				x.await(len(wrs))
				if notified {
					y.await(len(wrs))
				}
			})
			if allocs >= 1 {
				t.Errorf("%v of %d bytes: %v allocations, want 0", op, size, allocs)
			}
		}
	}
}

// TestFarDeviceNoAllocations does the same with device memory.
func TestFarDeviceNoAllocations(t *testing.T) {
	noRaces(t)
	r := newFarRig(t, "shm")
	var wcs [16]verbs.WC
	wrs := []verbs.SendWR{
		r.remote.request(verbs.OpRDMAWrite, 0, r.local.sge(0, 5000)), r.remote.request(verbs.OpRDMARead, 0, r.hostLocal.sge(0, 100), r.local.sge(0, 5000)),
	}
	allocs := testing.AllocsPerRun(50, func() {
		if n, err := r.qa.PostSend(wrs); n != len(wrs) {
			t.Fatalf("PostSend = %d, %v, want %d", n, err, len(wrs))
		}
		for n := 0; n < len(wrs); {
			k, err := r.cqa.Poll(wcs[:])
			must(t, err)
			n += k
		}
	})
	if allocs >= 1 {
		t.Errorf("%v allocations, want 0", allocs)
	}
}
