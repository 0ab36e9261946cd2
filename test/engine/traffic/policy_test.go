package traffic_test

import (
	"testing"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/internal/nullnic"
	"ibverbx/verbs"
)

// paced is a VirtualQP on a NIC whose lanes complete under the test's control, with requests of four
// fragments.
type paced struct {
	q     *ibverbx.VirtualQP
	cq    *ibverbx.VirtualCQ
	lanes []*nullnic.QP
	wr    ibverbx.SendWR
	now   int64
	posts int // requests per step, 0 for as many as possible
}

func newPaced(t *testing.T, policy ibverbx.Policy, lanes, depth int) *paced {
	t.Helper()
	x := &paced{}
	nic := nullnic.New("null0", 0x11)
	rails, err := ibverbx.NewRails(ibverbx.RailConfig{Context: nic})
	enginetest.Must(t, err)
	x.cq, err = rails.NewCQ(ibverbx.CQConfig{})
	enginetest.Must(t, err)
	x.q, err = x.cq.NewQP(ibverbx.Config{
		Lanes: lanes, Policy: policy, FragmentSize: 4096, SendDepth: depth, LaneDepth: 4 * depth,
		Now: func() int64 { return x.now },
	})
	enginetest.Must(t, err)
	card, err := x.q.Card()
	enginetest.Must(t, err)
	enginetest.Must(t, x.q.Connect(card))
	mem, err := verbs.AllocMemory(16384, nil)
	enginetest.Must(t, err)
	region, err := rails.Register(mem, verbs.AccessAll)
	enginetest.Must(t, err)
	t.Cleanup(func() { enginetest.Must(t, region.Close()); enginetest.Must(t, mem.Free()) })
	x.lanes = nic.QPs()[:lanes]
	for _, l := range x.lanes {
		l.Hold()
	}
	x.wr = ibverbx.SendWR{Opcode: verbs.OpRDMAWrite, Remote: region.Remote()}
	x.wr.SetSGE(region.SGE(0, 16384))
	return x
}

// step posts, advances the clock by a microsecond in which each lane completes at most its rate of fragments,
// and returns the completed fragments per lane.
func (x *paced) step(t *testing.T, rates ...int) (done []int) {
	t.Helper()
	for i := 0; x.posts == 0 || i < x.posts; i++ {
		if n, _ := x.q.PostSend([]ibverbx.SendWR{x.wr}); n == 0 {
			break
		}
	}
	x.now += 1000
	for i, l := range x.lanes {
		n := min(rates[i], len(l.Posted()))
		l.Complete(n)
		done = append(done, n)
	}
	_, err := x.cq.Poll(make([]ibverbx.WC, 64))
	enginetest.Must(t, err)
	return done
}

// unequal runs two lanes, one of which completes four fragments per microsecond and the other one. It returns
// the fragments that each carried in the second half of the run.
func unequal(t *testing.T, policy ibverbx.Policy, microseconds int) (fast, slow int) {
	t.Helper()
	x := newPaced(t, policy, 2, 16)
	for step := range microseconds {
		done := x.step(t, 4, 1)
		if step >= microseconds/2 {
			fast += done[0]
			slow += done[1]
		}
	}
	return fast, slow
}

// TestTwoChoicesManySlowLanes: twelve of sixteen lanes are slow. Two lanes drawn at random would both be slow
// more than half of the time; the slow lanes must get only their capacity, a quarter.
func TestTwoChoicesManySlowLanes(t *testing.T) {
	x := newPaced(t, ibverbx.TwoChoices, 16, 256)
	rates := make([]int, 16)
	for i := range rates {
		rates[i] = 1
		if i < 4 {
			rates[i] = 9
		}
	}
	const time = 4000
	total := 0
	for step := range time {
		for _, n := range x.step(t, rates...) {
			if step >= time/2 {
				total += n
			}
		}
	}
	if want := time / 2 * (4*9 + 12); total < want*95/100 {
		t.Errorf("%d fragments in %d microseconds, want 95 of 100 that the lanes can carry (%d)", total, time/2, want)
	}
}

// TestTwoChoicesSilentLane: a lane that stops completing gets no further requests, although its NIC has not
// reported an error and the other lanes are saturated. When it completes again, it gets its share.
func TestTwoChoicesSilentLane(t *testing.T) {
	x := newPaced(t, ibverbx.TwoChoices, 4, 1024)
	x.posts = 2 // as many fragments as the lanes complete together
	run := func(steps int, rates ...int) (sum [4]int) {
		for range steps {
			for i, n := range x.step(t, rates...) {
				sum[i] += n
			}
		}
		return sum
	}
	run(500, 2, 2, 2, 2)
	run(10, 2, 0, 2, 2)
	before := len(x.lanes[1].Posted())
	others := run(200, 2, 0, 2, 2)
	if got := len(x.lanes[1].Posted()) - before; got > 4 {
		t.Errorf("a lane that had been silent for 10 us got %d fragments in the next 200 us, in which the lanes completed %v; want none", got, others)
	}
	run(1000, 4, 4, 4, 4)
	if sum := run(1000, 2, 2, 2, 2); sum[1] < 1500 {
		t.Errorf("after a lane is back the lanes carried %v fragments in 1000 us, want 2000 each", sum)
	}
}

// TestTwoChoicesForgetsSlowness: a formerly slow lane is tried again, and gets its share when it is fast
// again.
func TestTwoChoicesForgetsSlowness(t *testing.T) {
	x := newPaced(t, ibverbx.TwoChoices, 2, 16)
	for range 50 {
		for i := range 100 {
			slow := 0
			if i == 0 {
				slow = 1
			}
			x.step(t, 4, slow)
		}
	}
	slow := 0
	for i := range 60000 {
		if done := x.step(t, 4, 4); i >= 50000 {
			slow += done[1]
		}
	}
	if slow < 10000 {
		t.Errorf("a lane that was slow once carried %d fragments in 10000 us, want at least one in each", slow)
	}
}

// TestTwoChoicesWeighsLanes: unequal lanes carry unequal shares, so that both are busy. Round-robin makes the
// fast one wait for the slow one.
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

// TestSmallRequestsShareALane: unfragmented requests posted together use one lane, as one chain; requests
// posted individually use the lanes round-robin.
func TestSmallRequestsShareALane(t *testing.T) {
	for _, policy := range []ibverbx.Policy{ibverbx.RoundRobin, ibverbx.TwoChoices} {
		x := enginetest.NewScriptedQP(t, ibverbx.Config{Lanes: 4, Policy: policy})
		wrs := make([]ibverbx.SendWR, 16)
		for i := range wrs {
			wrs[i] = x.Request(uint64(i), verbs.OpRDMAWrite, 64)
		}
		x.PostSend(wrs...)
		if s := x.QP.Stats(); s.Doorbells != 1 || s.Fragments != 16 {
			t.Errorf("%s: %d doorbells for %d requests, want one for 16", policy, s.Doorbells, s.Fragments)
		}
		for i := range 3 {
			if n, err := x.QP.PostSend(wrs[i : i+1]); n != 1 {
				t.Fatalf("%s: PostSend = %d, %v", policy, n, err)
			}
		}
		used := 0
		for _, l := range x.QP.Stats().Lanes {
			if l.Fragments > 0 {
				used++
			}
		}
		if policy != ibverbx.TwoChoices && used != 4 {
			t.Errorf("%s: %d lanes used, want all four", policy, used)
		}
	}
}

// TestPolicyNames: UnmarshalText parses the output of String.
func TestPolicyNames(t *testing.T) {
	for _, p := range []ibverbx.Policy{ibverbx.RoundRobin, ibverbx.TwoChoices} {
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
