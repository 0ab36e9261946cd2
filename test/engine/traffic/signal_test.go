package traffic_test

import (
	"testing"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/verbs"
)

// TestSharedCompletions: short requests of a chain share one NIC completion, however few receives the peer
// has. Longer requests and messages are signaled more often, and so are all requests if Config demands it.
func TestSharedCompletions(t *testing.T) {
	for name, tt := range map[string]struct {
		op       verbs.Opcode
		n, size  int
		fragment uint32
		interval int
		recvs    int // that the peer has
		want     uint64
	}{
		"short WRITEs":        {verbs.OpRDMAWrite, 64, 8, 0, 0, 1, 1},
		"short READs":         {verbs.OpRDMARead, 64, 8, 0, 0, 1, 1},
		"two chains":          {verbs.OpRDMAWrite, 128, 8, 0, 0, 1, 2},
		"Config":              {verbs.OpRDMAWrite, 64, 8, 0, 32, 1, 2},
		"8 KiB in all":        {verbs.OpRDMAWrite, 64, 128, 0, 0, 1, 1},
		"more than 8 KiB":     {verbs.OpRDMAWrite, 64, 129, 0, 0, 1, 4},
		"fragments":           {verbs.OpRDMAWrite, 1, 4 << 20, 64 << 10, 0, 1, 4},
		"messages":            {verbs.OpRDMAWriteWithImm, 64, 8, 0, 0, 256, 5}, // one is a record
		"few receives":        {verbs.OpRDMAWriteWithImm, 1, 8, 0, 0, 1, 2},
		"Config of fragments": {verbs.OpRDMAWrite, 1, 4 << 20, 64 << 10, 32, 1, 2},
	} {
		t.Run(name, func(t *testing.T) {
			n := tt.n
			a, b := enginetest.NewPair(t, newStill(1).links, ibverbx.Config{
				Lanes: 1, Control: enginetest.Deaf{}, RecvDepth: tt.recvs, FragmentSize: tt.fragment, SignalInterval: tt.interval,
			})
			local, remote := a.Region(n*tt.size), b.Region(n*tt.size)
			enginetest.Stamp(local.Bytes(), 1, 1)
			enginetest.Stamp(remote.Bytes(), 2, 2)
			wrs := make([]ibverbx.SendWR, n)
			for i := range wrs {
				wrs[i] = ibverbx.SendWR{
					WRID: uint64(i), Opcode: tt.op, Flags: verbs.SendSignaled, Remote: remote.Remote(), RemoteOffset: uint64(i * tt.size),
				}
				wrs[i].SetSGE(local.SGE(uint64(i*tt.size), uint32(tt.size)))
			}
			a.PostSend(wrs...)
			for i, wc := range a.Wait(n) {
				if wc.WRID != uint64(i) || wc.Status != verbs.StatusSuccess {
					t.Fatalf("completion %d is that of request %d: %v", i, wc.WRID, wc.Status)
				}
			}
			if got := a.CQ.Stats().CQEs; got != tt.want {
				t.Errorf("%d completions of the NICs, want %d", got, tt.want)
			}
			if d := enginetest.FirstDifference(remote.Bytes(), local.Bytes()); d >= 0 {
				t.Errorf("byte %d differs", d)
			}
		})
	}
}
