//go:build linux && !race

package softnic_test

import (
	"testing"

	"ibverbx/verbs"
)

// TestShmNoAllocations holds direct transfers and packets over shared memory to zero allocations.
func TestShmNoAllocations(t *testing.T) {
	x, y := shmPair(t, 64*kib)
	if !heapMemory {
		x.lent()
	}
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
