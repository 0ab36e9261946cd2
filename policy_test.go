package ibverbx_test

import (
	"testing"

	"ibverbx"
	"ibverbx/internal/nullnic"
	"ibverbx/verbs"
)

// unequal is a VirtualQP with a lane that completes four fragments in a microsecond and
// one that completes one. It posts as much as it can for so long, and returns how many
// fragments each lane carried in the second half of the time.
func unequal(t *testing.T, policy ibverbx.Policy, microseconds int) (fast, slow int) {
	t.Helper()
	nic := nullnic.New("null0", 0x11)
	rails, err := ibverbx.NewRails(ibverbx.RailConfig{Context: nic})
	must(t, err)
	cq, err := rails.NewCQ(ibverbx.CQConfig{})
	must(t, err)
	var now int64
	q, err := cq.NewQP(ibverbx.Config{
		Lanes: 2, Policy: policy, FragmentSize: 4096, SendDepth: 16, LaneDepth: 64,
		Now: func() int64 { return now },
	})
	must(t, err)
	card, err := q.Card()
	must(t, err)
	must(t, q.Connect(card))
	mem, err := verbs.AllocMemory(16384, nil)
	must(t, err)
	region, err := rails.Register(mem, verbs.AccessAll)
	must(t, err)
	t.Cleanup(func() { must(t, region.Close()); must(t, mem.Free()) })
	lanes := nic.QPs()[:2]
	lanes[0].Hold()
	lanes[1].Hold()
	wr := ibverbx.SendWR{Opcode: verbs.OpRDMAWrite, Remote: region.Remote()}
	wr.SetSGE(region.SGE(0, 16384)) // four fragments
	for step := range microseconds {
		for {
			if n, _ := q.PostSend([]ibverbx.SendWR{wr}); n == 0 {
				break
			}
		}
		now += 1000
		done := [2]int{min(4, len(lanes[0].Posted())), min(1, len(lanes[1].Posted()))}
		for i, l := range lanes {
			l.Complete(done[i])
		}
		if step >= microseconds/2 {
			fast += done[0]
			slow += done[1]
		}
		_, err := cq.Poll(make([]ibverbx.WC, 16))
		must(t, err)
	}
	return fast, slow
}

// TestTwoChoicesWeighsLanes: unequal lanes carry unequal shares, so that both are busy.
// Taking them in turn makes the fast one wait for the slow one.
func TestTwoChoicesWeighsLanes(t *testing.T) {
	const time = 4000
	fast, slow := unequal(t, ibverbx.TwoChoices, time)
	if total := fast + slow; total < 5*time/2*9/10 {
		t.Errorf("two choices: %d and %d fragments in %d microseconds, want at least 9 of 10 that the lanes can carry (%d)", fast, slow, time/2, 5*time/2)
	}
	fast, slow = unequal(t, ibverbx.RoundRobin, time)
	if total := fast + slow; total > 5*time/2*6/10 {
		t.Errorf("round robin: %d and %d fragments: the test does not tell the policies apart", fast, slow)
	}
}

// TestSmallRequestsShareALane: requests that are not cut and are posted together go to one
// lane as one chain; those that are posted one by one go to the lanes in turn.
func TestSmallRequestsShareALane(t *testing.T) {
	for _, policy := range []ibverbx.Policy{ibverbx.RoundRobin, ibverbx.LeastBytes, ibverbx.TwoChoices} {
		x := newInstrument(t, ibverbx.Config{Lanes: 4, Policy: policy})
		wrs := make([]ibverbx.SendWR, 16)
		for i := range wrs {
			wrs[i] = x.request(uint64(i), verbs.OpRDMAWrite, 64)
		}
		if n, err := x.qp.PostSend(wrs); n != len(wrs) {
			t.Fatalf("%s: PostSend = %d, %v", policy, n, err)
		}
		if s := x.qp.Stats(); s.Doorbells != 1 || s.Fragments != 16 {
			t.Errorf("%s: %d doorbells for %d requests, want one for 16", policy, s.Doorbells, s.Fragments)
		}
		for i := range 3 {
			if n, err := x.qp.PostSend(wrs[i : i+1]); n != 1 {
				t.Fatalf("%s: PostSend = %d, %v", policy, n, err)
			}
		}
		used := 0
		for _, l := range x.qp.Stats().Lanes {
			if l.Fragments > 0 {
				used++
			}
		}
		if policy != ibverbx.TwoChoices && used != 4 {
			t.Errorf("%s: %d lanes used, want all four", policy, used)
		}
	}
}

// TestPolicyNames: what String writes UnmarshalText reads.
func TestPolicyNames(t *testing.T) {
	for _, p := range []ibverbx.Policy{ibverbx.RoundRobin, ibverbx.LeastBytes, ibverbx.TwoChoices} {
		var got ibverbx.Policy
		if err := got.UnmarshalText([]byte(p.String())); err != nil || got != p {
			t.Errorf("UnmarshalText(%q) = %v, %v", p, got, err)
		}
	}
	var p ibverbx.Policy
	if err := p.UnmarshalText([]byte("best")); err == nil {
		t.Error("there is a policy \"best\"")
	}
}
