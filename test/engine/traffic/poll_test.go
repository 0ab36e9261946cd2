package traffic_test

import (
	"testing"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/verbs"
)

// polled returns a host with ten WRITEs posted and not polled.
func polled(t *testing.T, lanes int) (a *enginetest.Host) {
	t.Helper()
	a, b := enginetest.NewPair(t, enginetest.MemoryLinks(2), ibverbx.Config{Lanes: lanes})
	local, remote := a.Region(64), b.Region(64)
	for i := range 10 {
		wr := ibverbx.SendWR{WRID: uint64(i), Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Remote: remote.Remote()}
		wr.SetSGE(local.SGE(0, 64))
		a.PostSend(wr)
	}
	return a
}

// TestPollForms: every poll function returns all completions once and in order, and keeps the ones that do
// not fit.
func TestPollForms(t *testing.T) {
	forms := map[string]func(t *testing.T, cq *ibverbx.VirtualCQ, got []ibverbx.WC) []ibverbx.WC{
		"three at a time": func(t *testing.T, cq *ibverbx.VirtualCQ, got []ibverbx.WC) []ibverbx.WC {
			var dst [3]ibverbx.WC
			n, err := cq.Poll(dst[:])
			enginetest.Must(t, err)
			return append(got, dst[:n]...)
		},
		"one": func(t *testing.T, cq *ibverbx.VirtualCQ, got []ibverbx.WC) []ibverbx.WC {
			wc, ok, err := cq.PollOne()
			enginetest.Must(t, err)
			if ok {
				got = append(got, wc)
			}
			return got
		},
		"physical queues": func(t *testing.T, cq *ibverbx.VirtualCQ, got []ibverbx.WC) []ibverbx.WC {
			wcs, dst := make([]verbs.WC, 5), make([]ibverbx.WC, 2)
			for rail := range 2 {
				physical, err := cq.CQ(rail)
				enginetest.Must(t, err)
				k, err := physical.Poll(wcs)
				enginetest.Must(t, err)
				n, err := cq.ProcessCompletions(rail, wcs[:k], dst)
				enginetest.Must(t, err)
				got = append(got, dst[:n]...)
			}
			return got
		},
	}
	for name, form := range forms {
		for _, lanes := range []int{1, 4} {
			t.Run(name, func(t *testing.T) {
				a := polled(t, lanes)
				var got []ibverbx.WC
				for range 1000 {
					got = form(t, a.CQ, got)
				}
				if len(got) != 10 {
					t.Fatalf("%d lanes: %d completions, want 10", lanes, len(got))
				}
				for i, wc := range got {
					if wc.WRID != uint64(i) || wc.Err() != nil {
						t.Errorf("%d lanes: completion %d is of request %d, %v", lanes, i, wc.WRID, wc.Err())
					}
				}
			})
		}
	}
}
