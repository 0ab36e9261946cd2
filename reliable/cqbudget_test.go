package reliable_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"ibverbx/internal/enginetest"
	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// smallCQ returns the limit of a device whose CQs hold few entries more than an engine needs for its first receives.
func smallCQ() enginetest.Limits {
	if len(reliable.NICConfig().QPTypes) > 0 {
		return enginetest.Limits{CQE: 4096} // UD needs twice as many receives
	}
	return enginetest.Limits{CQE: 2048}
}

// TestCQBudgetForSends: a program posts to ten peers and does not poll. The windows of its connections exceed the CQ of their
// engine, which must not overrun: sends without a CQ entry wait.
func TestCQBudgetForSends(t *testing.T) {
	const peers, posts, size = 10, 60, 16 << 10
	w := newWorld(t, softnic.Impairment{Delay: 10 * time.Microsecond})
	cfg := w.config(reliable.Config{ChunkBytes: 1024, WindowBytes: 1 << 20, NoCredits: true})
	a := newSideOver(t, w.link, cfg, size, smallCQ().Over)
	a.fill(3)
	all, qps := []*side{a}, []verbs.QP{a.qp}
	for len(qps) < peers {
		qps = append(qps, a.another(t))
	}
	for _, q := range qps {
		b := newSide(t, w.link, cfg, size)
		join(t, q, b.qp)
		all = append(all, b)
	}
	for i, q := range qps {
		for range posts {
			wr := verbs.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, RemoteAddr: all[i+1].mr.Addr(), RKey: all[i+1].mr.RKey()}
			wr.SetSGE(a.sge(0, size))
			if n, err := q.PostSend([]verbs.SendWR{wr}); n != 1 || err != nil {
				t.Fatalf("PostSend = %d, %v", n, err)
			}
		}
	}
	if sends, most := reliable.SendsOf(a.qp); sends != most || most != smallCQ().CQE/4 {
		t.Errorf("%d sends of paths are posted, want all %d, a quarter of the CQ", sends, smallCQ().CQE/4)
	}
	limit := w.now + int64(10*time.Second)
	for done := 0; done < peers*posts; {
		var wc [64]verbs.WC
		n, err := a.cq.Poll(wc[:])
		must(t, err)
		for _, c := range wc[:n] {
			if c.Status != verbs.StatusSuccess {
				t.Fatalf("a WRITE ended with %v: the CQ of the engine has overrun", c.Status)
			}
		}
		if done += n; n == 0 {
			if w.now >= limit {
				t.Fatalf("%d of %d WRITEs have completed after 10 s", done, peers*posts)
			}
			w.step(limit, all)
		}
	}
	if sends, _ := reliable.SendsOf(a.qp); sends != 0 {
		t.Errorf("%d sends of paths hold CQ entries after all WRITEs, want none", sends)
	}
}

// TestCQBudgetForQPs: QPs that share a send CQ are refused when the CQ of their engine could overrun, with an error that names the
// limit of the device. The QPs before work, and a closed QP returns its entries.
func TestCQBudgetForQPs(t *testing.T) {
	w := newWorld(t, softnic.Impairment{Delay: 10 * time.Microsecond})
	cfg := w.config(reliable.Config{Paths: 2, ChunkBytes: 1024})
	a, b := newSideOver(t, w.link, cfg, 4096, smallCQ().Over), newSide(t, w.link, cfg, 4096)
	connect(t, a, b)
	qc := verbs.QPConfig{Type: verbs.RC, SendCQ: a.cq, RecvCQ: a.cq, MaxSendWR: 4, MaxRecvWR: 4}
	var qps []verbs.QP
	var err error
	for err == nil && len(qps) < 1000 {
		var q verbs.QP
		if q, err = a.pd.CreateQP(qc); err == nil {
			qps = append(qps, q)
		}
	}
	if !errors.Is(err, verbs.ErrLimit) || !strings.Contains(err.Error(), "MaxCQE") {
		t.Fatalf("CreateQP after %d QPs = %v, want ErrLimit that names MaxCQE", len(qps), err)
	}
	for range 3 {
		must(t, qps[0].Close())
		qps[0], err = a.pd.CreateQP(qc)
		must(t, err)
	}
	w.write(t, a, b)
	for _, q := range qps {
		must(t, q.Close())
	}
}
