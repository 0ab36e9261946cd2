package verbstest

import (
	"context"
	"errors"
	"math/rand/v2"

	"ibverbx/verbs"
)

var closeOrderTests = []test{
	{"EveryOrder", closeEveryOrder},
	{"WakesSleepers", closeWakesSleepers},
}

// piece is an object and those that stand on it.
type piece struct {
	name  string
	obj   closer
	under []string
}

// everything makes one object of each kind on s, which the test closes itself. They
// can be closed in the order of the slice.
func (e *env) everything(s *side) []piece {
	e.Helper()
	pd, err := s.ctx.AllocPD()
	e.must(err, "AllocPD")
	cq, err := s.ctx.CreateCQ(verbs.CQConfig{Depth: 8, Waker: verbs.NewWaker()})
	e.must(err, "CreateCQ")
	mr, err := pd.RegisterMemory(e.memory(4096), verbs.AccessAll)
	e.must(err, "RegisterMemory")
	parts := []piece{{"mr", mr, nil}}
	var last []piece // what the QP stands on
	cfg := verbs.QPConfig{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, MaxSendWR: 4, MaxRecvWR: 4, Port: s.port, GID: s.gid}
	if s.attr.Capabilities&verbs.CapSRQ != 0 {
		srq, err := pd.CreateSRQ(verbs.SRQConfig{MaxWR: 4})
		e.must(err, "CreateSRQ")
		cfg.SRQ, cfg.MaxRecvWR = srq, 0
		last = append(last, piece{"srq", srq, []string{"qp"}})
	}
	qp, err := pd.CreateQP(cfg)
	e.must(err, "CreateQP")
	if s.attr.Capabilities&verbs.CapUD != 0 {
		ep, err := qp.Endpoint()
		e.must(err, "Endpoint")
		ah, err := pd.CreateAH(verbs.AHAttr{DGID: ep.GID, SGIDIndex: e.gidIndex(s, ep.GID), DLID: ep.LID, Port: s.port})
		e.must(err, "CreateAH")
		parts = append(parts, piece{"ah", ah, nil})
	}
	last = append(last, piece{"cq", cq, []string{"qp"}}, piece{"pd", pd, []string{"mr", "qp", "srq", "ah"}})
	return append(append(parts, piece{"qp", qp, nil}), last...)
}

// Objects may be closed in any order: one that others stand on says ErrBusy and can be
// closed when they are gone.
func closeEveryOrder(e *env) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range e.rounds(60) {
		parts := e.everything(e.a)
		rng.Shuffle(len(parts), func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
		open := map[string]bool{}
		for _, p := range parts {
			open[p.name] = true
		}
		for pass := 0; len(open) > 0; pass++ {
			if pass > 3 {
				e.Fatalf("after %d passes %v are still open", pass, open)
			}
			for _, p := range parts {
				busy := false
				for _, u := range p.under {
					busy = busy || open[u]
				}
				err := p.obj.Close()
				if busy != errors.Is(err, verbs.ErrBusy) || (!busy && err != nil) {
					e.Fatalf("Close of %s = %v with %v open, want ErrBusy: %v", p.name, err, open, busy)
				}
				if !busy {
					delete(open, p.name)
				}
			}
		}
	}
}

// A goroutine that sleeps in Wait does not sleep for ever when its CQ goes: it is woken
// and finds ErrClosed, whether the CQ alone or the whole context was closed.
func closeWakesSleepers(e *env) {
	for _, what := range []string{"CQ", "Context"} {
		e.sub(what, func(e *env) {
			w := verbs.NewWaker()
			cq := e.newCQ(e.a, 8, w)
			ended := make(chan error, 1)
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			go func() {
				_, err := verbs.Wait(ctx, cq, w, make([]verbs.WC, 1))
				ended <- err
			}()
			if what == "CQ" {
				e.must(cq.Close(), "Close")
			} else {
				e.must(e.a.ctx.Close(), "Close")
			}
			e.refused("Wait on a CQ that was closed", <-ended, verbs.ErrClosed)
		})
	}
}
