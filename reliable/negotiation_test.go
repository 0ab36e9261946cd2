package reliable_test

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// exchange moves a message in each direction between two QPs of two sides.
func exchange(t *testing.T, a, b *side, qa, qb verbs.QP) {
	t.Helper()
	x, y := *a, *b
	x.qp, y.qp = qa, qb
	if a == b { // with one CQ
		for _, s := range []*side{&x, &y} {
			s.post(t, s.write(s, 0, 100))
			must(t, s.wait(t, 1)[0].Err())
		}
		return
	}
	transfer(t, &x, &y, verbs.OpRDMAWriteWithImm, 5000)
	transfer(t, &y, &x, verbs.OpSend, 5000)
}

// TestFlowsAreNegotiated: QPs share connections in whatever order the two ends create, connect, close and use
// them.
func TestFlowsAreNegotiated(t *testing.T) {
	cfg := reliable.Config{Paths: 2, ChunkBytes: 2048, RecvBytes: 1024 * 2048, Flows: 8}
	t.Run("another order", func(t *testing.T) {
		f := newFan(t, softnic.NewMemoryLink(nil), cfg, 1, 1<<14)
		for range 7 {
			f.qa, f.qb = append(f.qa, f.a.another(t)), append([]verbs.QP{f.b.another(t)}, f.qb...)
		}
		must(t, f.qa[0].Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.AttrState))
		must(t, f.qb[7].Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.AttrState))
		for i := range f.qa {
			join(t, f.qa[i], f.qb[i])
		}
		for i := range f.qa {
			exchange(t, f.a, f.b, f.qa[7-i], f.qb[7-i])
		}
		for i := range f.qa {
			if pathOf(f.qa[i]) != pathOf(f.qa[0]) || pathOf(f.qb[i]) != pathOf(f.qb[0]) {
				t.Errorf("pair %d has the paths %d and %d, want those of the first, %d and %d",
					i, pathOf(f.qa[i]), pathOf(f.qb[i]), pathOf(f.qa[0]), pathOf(f.qb[0]))
			}
		}
	})
	t.Run("one end makes more", func(t *testing.T) {
		f := newFan(t, softnic.NewMemoryLink(nil), cfg, 4, 1<<14)
		for round := range 12 {
			for _, s := range []*side{f.a, f.b}[:1+round%2] {
				for range round % 3 { // QPs that are never connected
					must(t, s.another(t).Close())
				}
			}
			k := round % 4
			must(t, f.qa[k].Close())
			must(t, f.qb[k].Close())
			f.qa[k], f.qb[k] = f.a.another(t), f.b.another(t)
			join(t, f.qa[k], f.qb[k])
			for i := range f.qa {
				exchange(t, f.a, f.b, f.qa[i], f.qb[i])
			}
		}
	})
	t.Run("any order", func(t *testing.T) {
		rng := rand.New(rand.NewPCG(1, 2))
		f := newFan(t, softnic.NewMemoryLink(nil), cfg, 12, 1<<14)
		for range 40 {
			i, k := rng.IntN(12), rng.IntN(12)
			ends := []func(){
				func() { must(t, f.qa[i].Close()) }, func() { must(t, f.qb[i].Close()) },
				func() { must(t, f.qb[k].Close()) }, func() { must(t, f.qa[k].Close()) },
			}
			for _, n := range rng.Perm(len(ends)) {
				ends[n]()
			}
			for _, n := range []int{i, k} {
				f.qa[n] = f.a.another(t)
			}
			for _, n := range []int{k, i} {
				f.qb[n] = f.b.another(t)
			}
			join(t, f.qa[k], f.qb[k])
			if i != k {
				join(t, f.qb[i], f.qa[i])
			}
			exchange(t, f.b, f.a, f.qb[i], f.qa[i])
			exchange(t, f.a, f.b, f.qa[k], f.qb[k])
		}
	})
}

// joinByModify connects two QPs to each other as programs do that know only Modify.
func joinByModify(t *testing.T, a, b verbs.QP) {
	t.Helper()
	ea, err := a.Endpoint()
	must(t, err)
	eb, err := b.Endpoint()
	must(t, err)
	must(t, verbs.ConnectWith(a, verbs.ConnectAttr(ea, eb, 1, 1)))
	must(t, verbs.ConnectWith(b, verbs.ConnectAttr(eb, ea, 1, 1)))
}

// TestFlowsToSeveralPeers connects the QPs of a PD to QPs of two hosts, of two PDs on one host, of its own
// PD, and to themselves. With Modify the leader does not know the peer's PD: it proposes a connection to
// another peer and then has to use another one.
func TestFlowsToSeveralPeers(t *testing.T) {
	for name, connect := range map[string]func(*testing.T, verbs.QP, verbs.QP){
		"Connect": func(t *testing.T, a, b verbs.QP) { join(t, a, b) }, "Modify": joinByModify,
	} {
		t.Run(name, func(t *testing.T) {
			link := softnic.NewMemoryLink(nil)
			cfg := reliable.Config{Paths: 2, ChunkBytes: 2048, Flows: 4, GiveUp: int64(patience)}
			a, b, c := newSide(t, link, cfg, 1<<14), newSide(t, link, cfg, 1<<14), newSide(t, link, cfg, 1<<14)
			inner, err := c.nic.Open()
			must(t, err)
			d := newSideOn(t, c.nic, inner, cfg, 1<<14) // another PD of the host of c
			paths := map[uint32]bool{}
			type pair struct {
				s, p   *side
				qs, qp verbs.QP
			}
			var pairs []pair
			for range 3 {
				for _, p := range []*side{b, c, d, a} {
					pairs = append(pairs, pair{a, p, a.another(t), p.another(t)}, pair{p, a, p.another(t), a.another(t)})
				}
			}
			for _, p := range pairs {
				connect(t, p.qs, p.qp)
			}
			for i := range pairs {
				for _, p := range []pair{pairs[i], pairs[len(pairs)-1-i]} {
					exchange(t, p.s, p.p, p.qs, p.qp)
				}
			}
			for _, p := range pairs {
				for _, q := range []verbs.QP{p.qs, p.qp} {
					if pathOf(q) == 0 || q.State() != verbs.StateRTS {
						t.Errorf("a QP has path %d and is %v, want a path and RTS", pathOf(q), q.State())
					}
				}
				if p.s == a || p.p == a {
					paths[pathOf(p.qs)] = true
				}
			}
			if len(paths) >= len(pairs) {
				t.Errorf("%d pairs have %d connections, want them to share", len(pairs), len(paths))
			}
			self := a.another(t)
			ep, err := self.Endpoint()
			must(t, err)
			must(t, self.Connect(ep))
			x := *a
			x.qp = self
			x.post(t, x.write(&x, 0, 100))
			must(t, x.wait(t, 1)[0].Err())
		})
	}
}

// TestOtherFlows: Connect refuses a peer with another Config.Flows.
func TestOtherFlows(t *testing.T) {
	link := softnic.NewMemoryLink(nil)
	var sides []*side
	for _, flows := range []int{1, 2, 3} {
		sides = append(sides, newSide(t, link, reliable.Config{Paths: 2, Flows: flows}, 4096))
	}
	for i, a := range sides {
		for k, b := range sides {
			if i == k {
				continue
			}
			ep, err := b.qp.Endpoint()
			must(t, err)
			if err := a.qp.Connect(ep); !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), "the same Config.Flows") {
				t.Errorf("Connect = %v, want ErrInvalid because of Config.Flows", err)
			}
		}
	}
}

// newLeaderAndFollower returns a connected leader and follower on a world's clock, whose QPs share connections. The
// follower's sends are counted.
func newLeaderAndFollower(t *testing.T, w *world) (leader, follower *side, sends *counted) {
	t.Helper()
	cfg := w.config(reliable.Config{Paths: 2, Flows: 4})
	sends = newCounted()
	leader = newSide(t, w.link, cfg, 4096)
	follower = newSideOver(t, w.link, cfg, 4096, sends.over)
	connect(t, leader, follower)
	return leader, follower, sends
}

// TestNothingIsSentBeforeConfirm: a follower that has accepted a proposal stays silent on its paths and
// control QPs until the leader confirms, even with requests and receives pending.
func TestNothingIsSentBeforeConfirm(t *testing.T) {
	reliable.OverUC(t, "handshake QPs that are not counted with the paths")
	w := newWorld(t, softnic.Impairment{Delay: 10 * time.Microsecond})
	a, b, sends := newLeaderAndFollower(t, w)
	b.recv(t, 1, 2048, 100)
	a.post(t, a.write(b, 0, 100)) // proposes
	b.post(t, b.write(a, 0, 100))
	for limit := w.now + int64(100*time.Millisecond); w.now < limit; { // A sleeps, its NIC works
		w.step(limit, []*side{b})
	}
	made := func() int { return sent(sends.paths...) + sent(sends.controls...) }
	if pathOf(b.qp) == 0 || made() != 0 {
		t.Fatalf("the follower has path %d and made %d sends without a confirm, want a path and no send", pathOf(b.qp), made())
	}
	w.polled(t, a, 1, verbs.StatusSuccess, a, b)
	w.polled(t, b, 1, verbs.StatusSuccess, a, b)
	if made() == 0 {
		t.Fatalf("the follower made no send, want some after the confirm")
	}
}

// TestDataBeforeConfirm: the leader's handshake QP refuses the confirm once. The leader's data arrives first and
// is accepted; the confirm arrives later.
func TestDataBeforeConfirm(t *testing.T) {
	w := newWorld(t, softnic.Impairment{Delay: 10 * time.Microsecond})
	a, b, _ := newLeaderAndFollower(t, w)
	must(t, a.nic.RefuseSend(a.qp.Num(), 1, nil)) // the proposal is the first
	a.post(t, a.write(b, 0, 100))
	if took := w.polled(t, a, 1, verbs.StatusSuccess, a, b); took > time.Millisecond {
		t.Errorf("the leader's WRITE took %v, want it taken before the confirm", took)
	}
	b.recv(t, 1, 2048, 100)
	a.post(t, a.send(0, 100))
	b.post(t, b.write(a, 0, 100))
	w.polled(t, a, 1, verbs.StatusSuccess, a, b)
	w.polled(t, b, 1, verbs.StatusSuccess, a, b)
}

// TestFollowerRequestsProposal: a follower with the first request solicits a proposal, and retries if the leader is not
// ready to send.
func TestFollowerRequestsProposal(t *testing.T) {
	w := newWorld(t, softnic.Impairment{Delay: 10 * time.Microsecond})
	a, b, _ := newLeaderAndFollower(t, w)
	b.post(t, b.write(a, 0, 100))
	if took := w.polled(t, b, 1, verbs.StatusSuccess, a, b); took > time.Millisecond {
		t.Errorf("the follower's WRITE took %v, want less than a millisecond", took)
	}
}

// TestLongestTimeouts connects QPs with the longest timeout and the largest number of retries, whose product exceeds ten hours.
func TestLongestTimeouts(t *testing.T) {
	for _, flows := range []int{1, 4} {
		link := softnic.NewMemoryLink(nil)
		var sides [2]*side
		var qps [2]verbs.QP
		for i := range sides {
			nic, inner := openWithout(t, link, nil, 0)
			s := newSideOn(t, nic, inner, reliable.Config{Paths: 2, Flows: flows}, 4096)
			q, err := s.pd.CreateQP(verbs.QPConfig{
				Type: verbs.RC, SendCQ: s.cq, RecvCQ: s.cq, MaxSendWR: 4, Path: verbs.PathConfig{AckTimeout: 31, RetryCount: 7},
			})
			must(t, err)
			t.Cleanup(func() { must(t, q.Close()) })
			sides[i], qps[i] = s, q
		}
		join(t, qps[0], qps[1])
		if n, err := qps[0].PostSend([]verbs.SendWR{sides[0].write(sides[1], 0, 8)}); n != 1 {
			t.Fatalf("PostSend = %d, %v, want 1", n, err)
		}
		if wc := sides[0].wait(t, 1)[0]; wc.Status != verbs.StatusSuccess {
			t.Errorf("Flows %d: a WRITE ends with %v, want success", flows, wc.Status)
		}
	}
}
