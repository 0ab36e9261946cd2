//go:build linux && !race

package softnic_test

import (
	"runtime"
	"testing"

	"ibverbx/softnic"
	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

// TestUDPNoAllocations: a round trip over UDP does not allocate, sealed or not, and with host or device
// memory.
func TestUDPNoAllocations(t *testing.T) {
	u := newUDPRig(t, softnic.UDPConfig{})
	_, src := memory(t, u.pa, 64*kib)
	_, dst := memory(t, u.pb, 64*kib)
	t.Run("plain", func(t *testing.T) { udpNoAllocations(t, u, src, dst) })
	t.Run("device", func(t *testing.T) {
		device := new(verbstest.MemoryDevice)
		udpNoAllocations(t, u, bigPiece(t, u.pa, device, 64*kib).mr, dst)
		udpNoAllocations(t, u, src, bigPiece(t, u.pb, device, 64*kib).mr)
	})
	u.sa, u.sb = newSeals(t)
	t.Run("sealed", func(t *testing.T) { udpNoAllocations(t, u, src, dst) })
}

func udpNoAllocations(t *testing.T, u *udpRig, src, dst verbs.MR) {
	cq := newCQ(t, u.ca, 64)
	qa, _ := u.pair(verbs.RC, cq, newCQ(t, u.cb, 64), 64)
	wcs := make([]verbs.WC, 64)
	ops := []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead}
	if dst.Addr() < 1<<47 { // devices do not support atomics
		ops = append(ops, verbs.OpAtomicFetchAndAdd)
	}
	for _, op := range ops {
		for _, size := range []uint32{8, 64 * kib} {
			if op == verbs.OpAtomicFetchAndAdd && size > 8 {
				continue
			}
			wrs := make([]verbs.SendWR, 8)
			for i := range wrs {
				wrs[i] = writeWR(src, dst, size)
				wrs[i].Opcode = op
			}
			allocs := testing.AllocsPerRun(50, func() {
				if n, err := qa.PostSend(wrs); n != len(wrs) {
					t.Fatalf("PostSend = %d, %v, want %d", n, err, len(wrs))
				}
				for left := len(wrs); left > 0; {
					n, err := cq.Poll(wcs)
					if err != nil {
						t.Fatalf("Poll: %v", err)
					}
					if left -= n; n == 0 {
						runtime.Gosched() // AllocsPerRun has one processor, which the reading goroutine needs
					}
				}
			})
			if allocs >= 1 {
				t.Errorf("%v of %d bytes: %v allocations, want 0", op, size, allocs)
			}
		}
	}
}
