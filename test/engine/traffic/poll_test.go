package traffic_test

import (
	"errors"
	"testing"

	"ibverbx"
	"ibverbx/internal/rig"
	"ibverbx/verbs"
)

// polled returns a host with ten WRITEs posted and not polled.
func polled(t *testing.T, lanes int) (a *rig.Host) {
	t.Helper()
	a, b := rig.NewPair(t, rig.MemoryLinks(2), ibverbx.Config{Lanes: lanes})
	local, remote := a.Region(64), b.Region(64)
	for i := range 10 {
		wr := ibverbx.SendWR{WRID: uint64(i), Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Remote: remote.Remote()}
		wr.SetSGE(local.SGE(0, 64))
		a.PostSend(wr)
	}
	return a
}

// TestPollForms: every way to poll returns all completions once and in order, and keeps those that
// it has no room for.
func TestPollForms(t *testing.T) {
	forms := map[string]func(t *testing.T, cq *ibverbx.VirtualCQ, got []ibverbx.WC) []ibverbx.WC{
		"three at a time": func(t *testing.T, cq *ibverbx.VirtualCQ, got []ibverbx.WC) []ibverbx.WC {
			var dst [3]ibverbx.WC
			n, err := cq.Poll(dst[:])
			rig.Must(t, err)
			return append(got, dst[:n]...)
		},
		"one": func(t *testing.T, cq *ibverbx.VirtualCQ, got []ibverbx.WC) []ibverbx.WC {
			wc, ok, err := cq.PollOne()
			rig.Must(t, err)
			if ok {
				got = append(got, wc)
			}
			return got
		},
		"each": func(t *testing.T, cq *ibverbx.VirtualCQ, got []ibverbx.WC) []ibverbx.WC {
			n, err := cq.Each(func(wc *ibverbx.WC) bool {
				got = append(got, *wc)
				return len(got)%4 != 0
			})
			rig.Must(t, err)
			if n > 4 {
				t.Errorf("Each = %d after false was returned for the fourth", n)
			}
			return got
		},
		"rail by rail": func(t *testing.T, cq *ibverbx.VirtualCQ, got []ibverbx.WC) []ibverbx.WC {
			var dst [2]ibverbx.WC
			for rail := range 2 {
				n, err := cq.PollRail(rail, dst[:])
				rig.Must(t, err)
				got = append(got, dst[:n]...)
			}
			return got
		},
		"physical queues": func(t *testing.T, cq *ibverbx.VirtualCQ, got []ibverbx.WC) []ibverbx.WC {
			wcs, dst := make([]verbs.WC, 5), make([]ibverbx.WC, 2)
			for rail := range 2 {
				physical, err := cq.CQ(rail)
				rig.Must(t, err)
				k, err := physical.Poll(wcs)
				rig.Must(t, err)
				n, err := cq.ProcessCompletions(rail, wcs[:k], dst)
				rig.Must(t, err)
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

// TestPollRailLeavesTheOther: polling one rail takes nothing from another.
func TestPollRailLeavesTheOther(t *testing.T) {
	a := polled(t, 2) // request i goes to rail i%2
	var dst [16]ibverbx.WC
	n, err := a.CQ.PollRail(0, dst[:])
	if n != 1 || err != nil || dst[0].WRID != 0 {
		t.Errorf("PollRail(0) = %d, %v; want the first request alone: the second is on rail 1", n, err)
	}
	if n, err := a.CQ.PollRail(1, dst[:]); n != 9 || err != nil {
		t.Errorf("PollRail(1) = %d, %v; want the other nine", n, err)
	}
	for _, rail := range []int{-1, 2} {
		if _, err := a.CQ.PollRail(rail, dst[:]); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("PollRail(%d) = %v, want %v", rail, err, verbs.ErrInvalid)
		}
		if _, err := a.CQ.ProcessCompletions(rail, nil, dst[:]); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("ProcessCompletions of rail %d = %v, want %v", rail, err, verbs.ErrInvalid)
		}
	}
}

// TestEachMayPost: the callback of Each can post, and gets the completions of its posts.
func TestEachMayPost(t *testing.T) {
	a, b := rig.NewPair(t, rig.MemoryLinks(1), ibverbx.Config{Lanes: 4})
	local, remote := a.Region(64), b.Region(64)
	wr := ibverbx.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Remote: remote.Remote()}
	wr.SetSGE(local.SGE(0, 64))
	post := func(id uint64) {
		wr.WRID = id
		a.PostSend(wr)
	}
	post(0)
	seen := uint64(0)
	for range 100 {
		_, err := a.CQ.Each(func(wc *ibverbx.WC) bool {
			if wc.WRID != seen {
				t.Errorf("completion of request %d, want %d", wc.WRID, seen)
			}
			if seen++; seen < 20 {
				post(seen)
			}
			return true
		})
		rig.Must(t, err)
	}
	if seen != 20 {
		t.Errorf("%d completions, want 20", seen)
	}
}
