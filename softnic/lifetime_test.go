package softnic

import (
	"runtime"
	"testing"
	"time"
	"weak"

	"ibverbx/verbs"
)

// gone checks that the garbage collector frees all given QPs.
func gone(t *testing.T, qps []weak.Pointer[qp]) {
	t.Helper()
	alive := len(qps)
	for range 10 {
		runtime.GC()
		alive = 0
		for _, w := range qps {
			if w.Value() != nil {
				alive++
			}
		}
		if alive == 0 {
			return
		}
	}
	t.Errorf("%d of %d closed QPs are still in memory", alive, len(qps))
}

// watched records QPs before they are closed.
func watched(qps ...*qp) []weak.Pointer[qp] {
	var all []weak.Pointer[qp]
	for _, q := range qps {
		all = append(all, weak.Make(q))
	}
	return all
}

// TestCQLetsQPsGo: even a deep CQ does not keep closed QPs and their rings alive after reporting their
// completions. Neither does a CQ with unpolled completions, nor an SRQ.
func TestCQLetsQPsGo(t *testing.T) {
	for _, polled := range []bool{true, false} {
		a, b := pairOn(t, NewMemoryLink(nil), 256)
		s, err := b.pd.CreateSRQ(verbs.SRQConfig{MaxWR: 32})
		check(t, err)
		var closed []weak.Pointer[qp]
		for range 20 {
			closed = append(closed, traffic(t, a, b, s, polled)...)
		}
		gone(t, closed)
		runtime.KeepAlive(a)
		runtime.KeepAlive(b)
	}
}

func pairOn(t *testing.T, link Link, depth int) (a, b *nicRig) {
	t.Helper()
	return newNICRig(t, link, depth, Config{}), newNICRig(t, link, depth, Config{})
}

// traffic creates two QPs, uses them and closes them.
func traffic(t *testing.T, a, b *nicRig, s verbs.SRQ, polled bool) []weak.Pointer[qp] {
	t.Helper()
	qa := a.qp(verbs.RC, 16)
	q, err := b.pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: b.cq, RecvCQ: b.cq, SRQ: s, MaxSendWR: 4})
	check(t, err)
	qb := q.(*qp)
	join(t, qa, qb)
	if _, err := s.PostRecv(make([]verbs.RecvWR, 1)); err != nil {
		t.Fatal(err)
	}
	post(t, qa, a.to(b, verbs.OpRDMAWrite), a.to(b, verbs.OpRDMARead), verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled})
	post(t, qb, b.to(a, verbs.OpRDMAWrite))
	if polled {
		if na, nb := len(a.poll()), len(b.poll()); na != 3 || nb != 2 {
			t.Fatalf("%d and %d completions, want 3 and 2", na, nb)
		}
	}
	check(t, qa.Close())
	check(t, qb.Close())
	return watched(qa, qb)
}

// TestWorkListsLetQPsGo: the work lists do not keep QPs alive, not even in unused parts of their
// arrays.
func TestWorkListsLetQPsGo(t *testing.T) {
	for name, list := range map[string]func(*testing.T) ([]weak.Pointer[qp], *nicRig){
		"broken": brokenQPs, "watch": unansweredQPs, "failing": failingQPs, "waiting": waitingQPs,
	} {
		t.Run(name, func(t *testing.T) {
			closed, s := list(t)
			gone(t, closed)
			runtime.KeepAlive(s)
		})
	}
}

// brokenQPs returns QPs failed by a CQ overrun.
func brokenQPs(t *testing.T) ([]weak.Pointer[qp], *nicRig) {
	a, b := pairOn(t, NewMemoryLink(nil), 4)
	qps := make([]*qp, 50)
	for i := range qps {
		qps[i] = a.qp(verbs.RC, 16)
	}
	first, peer := qps[0], b.qp(verbs.RC, 4)
	join(t, first, peer)
	for range 5 {
		post(t, first, a.to(b, verbs.OpRDMAWrite))
	}
	if got := first.State(); got != verbs.StateErr {
		t.Fatalf("the QP is in %v: the CQ did not overrun", got)
	}
	return closeAll(t, qps), a
}

// unansweredQPs have timers: their peer's port is down.
func unansweredQPs(t *testing.T) ([]weak.Pointer[qp], *nicRig) {
	link := NewMemoryLink(&MemoryConfig{Now: func() int64 { return 0 }})
	a, b := pairOn(t, link, 64)
	qps := make([]*qp, 50)
	peer := b.qp(verbs.RC, 4)
	e, err := peer.Endpoint()
	check(t, err)
	b.nic.SetPort(false)
	for i := range qps {
		qps[i] = a.qp(verbs.RC, 4)
		check(t, qps[i].Connect(e))
		post(t, qps[i], a.to(b, verbs.OpRDMAWrite))
	}
	link.Step()
	return closeAll(t, qps), a
}

// failingQPs returns QPs failed by a receive.
func failingQPs(t *testing.T) ([]weak.Pointer[qp], *nicRig) {
	a, _ := pairOn(t, NewMemoryLink(nil), 512)
	qps := make([]*qp, 50)
	for i := range qps {
		q := a.qp(verbs.UC, 4)
		join(t, q, q)
		r := []verbs.RecvWR{{}}
		r[0].SetSGE(verbs.SGE{Addr: a.mr.Addr(), Length: 8, LKey: a.mr.LKey() + 1})
		if _, err := q.PostRecv(r); err != nil {
			t.Fatal(err)
		}
		post(t, q, a.to(a, verbs.OpSend))
		if got := q.State(); got != verbs.StateErr {
			t.Fatalf("the QP is in %v, want ERR", got)
		}
		qps[i] = q
	}
	return closeAll(t, qps), a
}

// waitingQPs returns QPs that waited for space on the link.
func waitingQPs(t *testing.T) ([]weak.Pointer[qp], *nicRig) {
	var now int64
	link, err := NewFaultLink(&FaultConfig{Now: func() int64 { return now }, Queue: 1, Impairment: Impairment{Delay: time.Millisecond}})
	check(t, err)
	a, b := pairOn(t, link, 512)
	qps := make([]*qp, 0, 100)
	for range 50 {
		qa, qb := a.qp(verbs.RC, 4), b.qp(verbs.RC, 4)
		join(t, qa, qb)
		post(t, qa, a.to(b, verbs.OpRDMAWrite), a.to(b, verbs.OpRDMARead))
		qps = append(qps, qa, qb)
	}
	for range 20 {
		next, _ := link.Step()
		now = max(now, next)
	}
	closed := closeAll(t, qps) // some in the middle of it
	settleLink(t, link, &now)
	return closed, a
}

func closeAll(t *testing.T, qps []*qp) []weak.Pointer[qp] {
	t.Helper()
	all := watched(qps...)
	for _, q := range qps {
		check(t, q.Close())
	}
	return all
}
