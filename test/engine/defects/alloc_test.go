//go:build !race

package defects_test

import (
	"testing"

	"ibverbx"
	"ibverbx/internal/rig"
	"ibverbx/verbs"
)

// TestDefectG33ReceivesAllocate: the original made vectors for every poll and every receive.
// Posting, telling and polling in both directions allocates nothing. The race detector
// allocates, so it is left out there.
func TestDefectG33ReceivesAllocate(t *testing.T) {
	rig.ForEachScheme(t, func(t *testing.T, scheme ibverbx.Scheme) {
		for _, lanes := range []int{1, 4} {
			a, b := rig.NewPair(t, rig.MemoryLinks(2), ibverbx.Config{Lanes: lanes, Scheme: scheme, FragmentSize: 100})
			local, remote := a.Region(1000), b.Region(1000)
			wr := ibverbx.SendWR{Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Remote: remote.Remote()}
			wr.SetSGE(local.SGE(0, 1000))
			wrs, recvs, wcs := []ibverbx.SendWR{wr, wr, wr, wr}, make([]ibverbx.RecvWR, 4), make([]ibverbx.WC, 8)
			if allocs := testing.AllocsPerRun(200, func() {
				b.PostRecv(recvs...)
				a.PostSend(wrs...)
				for left := len(wrs) + len(recvs); left > 0; {
					for _, h := range [...]*rig.Host{a, b} {
						n, err := h.CQ.Poll(wcs)
						if err != nil || (n > 0 && wcs[0].Status != verbs.StatusSuccess) {
							t.Fatalf("Poll = %d, %v, %v; want successes", n, err, wcs[0].Err())
						}
						left -= n
					}
				}
			}); allocs != 0 {
				t.Errorf("%d lanes: %v allocations for %d messages, want 0", lanes, allocs, len(wrs))
			}
		}
	})
}
