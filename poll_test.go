package ibverbx_test

import (
	"errors"
	"testing"

	"ibverbx"
	"ibverbx/verbs"
)

// polled is a pair with ten WRITEs posted whose completions have not been taken.
func polled(t *testing.T, lanes int) (a *host) {
	t.Helper()
	a, b := hostPair(t, memoryLinks(2), ibverbx.Config{Lanes: lanes})
	local, remote := a.region(64), b.region(64)
	for i := range 10 {
		wr := ibverbx.SendWR{WRID: uint64(i), Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Remote: remote.Remote()}
		wr.SetSGE(local.SGE(0, 64))
		if n, err := a.qp.PostSend([]ibverbx.SendWR{wr}); n != 1 {
			t.Fatalf("PostSend = %d, %v", n, err)
		}
	}
	return a
}

// TestPollForms: every way to poll gives all completions once, in order, and keeps what it
// was not asked for.
func TestPollForms(t *testing.T) {
	forms := map[string]func(t *testing.T, cq *ibverbx.VirtualCQ, got []ibverbx.WC) []ibverbx.WC{
		"three at a time": func(t *testing.T, cq *ibverbx.VirtualCQ, got []ibverbx.WC) []ibverbx.WC {
			var dst [3]ibverbx.WC
			n, err := cq.Poll(dst[:])
			must(t, err)
			return append(got, dst[:n]...)
		},
		"one": func(t *testing.T, cq *ibverbx.VirtualCQ, got []ibverbx.WC) []ibverbx.WC {
			wc, ok, err := cq.PollOne()
			must(t, err)
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
			must(t, err)
			if n > 4 {
				t.Errorf("Each = %d after false was returned for the fourth", n)
			}
			return got
		},
		"rail by rail": func(t *testing.T, cq *ibverbx.VirtualCQ, got []ibverbx.WC) []ibverbx.WC {
			var dst [2]ibverbx.WC
			for rail := range 2 {
				n, err := cq.PollRail(rail, dst[:])
				must(t, err)
				got = append(got, dst[:n]...)
			}
			return got
		},
		"physical queues": func(t *testing.T, cq *ibverbx.VirtualCQ, got []ibverbx.WC) []ibverbx.WC {
			var wcs [5]verbs.WC
			var dst [2]ibverbx.WC
			for rail := range 2 {
				k, err := cq.CQ(rail).Poll(wcs[:])
				must(t, err)
				n, err := cq.ProcessCompletions(rail, wcs[:k], dst[:])
				must(t, err)
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
					got = form(t, a.cq, got)
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
	n, err := a.cq.PollRail(0, dst[:])
	if n != 1 || err != nil || dst[0].WRID != 0 {
		t.Errorf("PollRail(0) = %d, %v; want the first request alone: the second is on rail 1", n, err)
	}
	if n, err := a.cq.PollRail(1, dst[:]); n != 9 || err != nil {
		t.Errorf("PollRail(1) = %d, %v; want the other nine", n, err)
	}
	for _, rail := range []int{-1, 2} {
		if _, err := a.cq.PollRail(rail, dst[:]); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("PollRail(%d) = %v, want %v", rail, err, verbs.ErrInvalid)
		}
		if _, err := a.cq.ProcessCompletions(rail, nil, dst[:]); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("ProcessCompletions of rail %d = %v, want %v", rail, err, verbs.ErrInvalid)
		}
	}
}

// TestEachMayPost: the callback can post, and sees what comes of it.
func TestEachMayPost(t *testing.T) {
	a, b := hostPair(t, memoryLinks(1), ibverbx.Config{Lanes: 4})
	local, remote := a.region(64), b.region(64)
	wr := ibverbx.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Remote: remote.Remote()}
	wr.SetSGE(local.SGE(0, 64))
	post := func(id uint64) {
		wr.WRID = id
		if n, err := a.qp.PostSend([]ibverbx.SendWR{wr}); n != 1 {
			t.Fatalf("PostSend = %d, %v", n, err)
		}
	}
	post(0)
	seen := uint64(0)
	for range 100 {
		_, err := a.cq.Each(func(wc *ibverbx.WC) bool {
			if wc.WRID != seen {
				t.Errorf("completion of request %d, want %d", wc.WRID, seen)
			}
			if seen++; seen < 20 {
				post(seen)
			}
			return true
		})
		must(t, err)
	}
	if seen != 20 {
		t.Errorf("%d completions, want 20", seen)
	}
}
