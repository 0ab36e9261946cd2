//go:build !race

package ibverbx_test

import (
	"testing"

	"ibverbx"
	"ibverbx/verbs"
)

// TestNoAllocations holds post and poll to zero allocations. The race detector allocates,
// so it is left out there.
func TestNoAllocations(t *testing.T) {
	for name, cfg := range map[string]ibverbx.Config{
		"one lane":   {Lanes: 1},
		"many lanes": {Lanes: 8, FragmentSize: 1024},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := hostPair(t, memoryLinks(1), cfg)
			local, remote := a.region(8192), b.region(8192)
			wrs := make([]ibverbx.SendWR, 16)
			for i := range wrs {
				wrs[i] = ibverbx.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Remote: remote.Remote()}
				wrs[i].SetSGE(local.SGE(0, 4000))
			}
			wcs := make([]ibverbx.WC, 16)
			if allocs := testing.AllocsPerRun(100, func() {
				if n, err := a.qp.PostSend(wrs); n != len(wrs) || err != nil {
					t.Fatal(n, err)
				}
				for left := len(wrs); left > 0; {
					n, err := a.cq.Poll(wcs)
					if err != nil || (n > 0 && wcs[0].Status != verbs.StatusSuccess) {
						t.Fatal(err, wcs[0].Err())
					}
					left -= n
				}
			}); allocs != 0 {
				t.Errorf("%v allocations for %d requests, want 0", allocs, len(wrs))
			}
		})
	}
}
