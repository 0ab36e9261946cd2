package reliable_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// stress is pairs of QPs between two sides, on a clock of the test, with random settings.
type stress struct {
	*world
	rng   *rand.Rand
	sides [2]*side
	qps   [2][]verbs.QP
	cqs   [2][]verbs.CQ
	left  [stressQPs]int  // expected completions, by pair
	gone  [stressQPs]bool // a QP of the pair was closed
}

const (
	stressQPs  = 3
	stressOps  = 48
	stressSize = 2000
)

func newStress(t *testing.T, seed uint64) *stress {
	s := &stress{rng: rand.New(rand.NewPCG(seed, 11))}
	pick := func(of ...int) int { return of[s.rng.IntN(len(of))] }
	s.world = newWorld(t, softnic.Impairment{Delay: 10 * time.Microsecond, Loss: float64(pick(0, 1, 5)) / 100})
	cfg := s.config(reliable.Config{
		Paths: pick(1, 2, 4), Flows: pick(1, 1, 3), ChunkBytes: 512, Window: pick(4, 32, 256), PathRecv: pick(4, 8),
		NoCredits: pick(0, 1) == 1, WindowBytes: pick(0, 0, 4<<20), MinProbe: 50_000,
	})
	shared := pick(0, 1) == 1
	t.Logf("%d paths, %d flows, window %d, no credits %v, shared receives %v, several engines %v",
		cfg.Paths, cfg.Flows, cfg.Window, cfg.NoCredits, shared, seed%4 >= 2)
	for i := range s.sides {
		s.sides[i] = newSideOver(t, s.link, cfg, stressOps*stressSize, func(inner verbs.Context) verbs.Context {
			if shared {
				return inner
			}
			return &interposer{Context: inner, refuse: noSharedUC}
		})
		s.makeQPs(t, i, seed%4 >= 2)
	}
	for k := range s.qps[0] {
		join(t, s.qps[0][k], s.qps[1][k])
	}
	return s
}

// makeQPs creates the QPs of a side. With split each has a separate send CQ and hence a separate engine. All
// receives complete in one CQ.
func (s *stress) makeQPs(t *testing.T, i int, split bool) {
	e := s.sides[i]
	s.qps[i], s.cqs[i] = []verbs.QP{e.qp}, []verbs.CQ{e.cq}
	if split {
		reliable.SplitEngines(e.ctx)
	}
	for len(s.qps[i]) < stressQPs {
		if !split {
			s.qps[i] = append(s.qps[i], e.another(t))
			continue
		}
		o := e.apart(t)
		must(t, o.qp.Close())
		q, err := e.pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: o.cq, RecvCQ: e.cq, MaxSendWR: 64, MaxRecvWR: 64})
		must(t, err)
		t.Cleanup(func() { must(t, q.Close()) })
		s.qps[i], s.cqs[i] = append(s.qps[i], q), append(s.cqs[i], o.cq)
	}
}

// post posts operation n, from one side to its own part of the other's memory.
func (s *stress) post(t *testing.T, n int) (check func() bool) {
	k, from := s.rng.IntN(stressQPs), s.rng.IntN(2)
	if s.gone[k] {
		return nil
	}
	a, b := s.sides[from], s.sides[1-from]
	op := []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm, verbs.OpSend, verbs.OpRDMARead}[s.rng.IntN(4)]
	off, size := n*stressSize, s.rng.IntN(stressSize)
	if op == verbs.OpSend || op == verbs.OpRDMAWriteWithImm {
		wr := verbs.RecvWR{WRID: uint64(n)}
		wr.SetSGE(b.sge(off, stressSize))
		if _, err := s.qps[1-from][k].PostRecv([]verbs.RecvWR{wr}); err != nil {
			t.Fatalf("PostRecv = %v, want none", err)
		}
		s.left[k]++
	}
	wr := verbs.SendWR{WRID: uint64(n), Opcode: op, Flags: verbs.SendSignaled, RemoteAddr: b.mr.Addr() + uint64(off), RKey: b.mr.RKey()}
	wr.SetSGE(a.sge(off, size))
	src, dst := a.mem.Bytes()[off:off+size], b.mem.Bytes()[off:off+size]
	if op == verbs.OpRDMARead {
		src, dst = dst, src
	}
	for i := range src {
		src[i] = byte(s.rng.Uint32())
	}
	want := bytes.Clone(src)
	if _, err := s.qps[from][k].PostSend([]verbs.SendWR{wr}); err != nil {
		t.Fatalf("PostSend = %v, want none", err)
	}
	s.left[k]++
	return func() bool { return s.gone[k] || bytes.Equal(dst, want) }
}

// poll checks completions: all succeed, in posting order per QP.
func (s *stress) poll(t *testing.T, last map[string]uint64) {
	for i := range s.sides {
		var wcs []verbs.WC
		for _, cq := range s.cqs[i] {
			var some [16]verbs.WC
			n, err := cq.Poll(some[:])
			must(t, err)
			wcs = append(wcs, some[:n]...)
		}
		for _, wc := range wcs {
			k := slices.IndexFunc(s.qps[i], func(q verbs.QP) bool { return q.Num() == wc.QPN })
			if s.gone[k] {
				continue
			}
			must(t, wc.Err())
			key := fmt.Sprint(i, wc.QPN, wc.Opcode&verbs.WCRecv != 0)
			if wc.WRID+1 <= last[key] {
				t.Fatalf("request %d of QP %d of side %d ends after %d, want them in order", wc.WRID, wc.QPN, i, last[key]-1)
			}
			last[key] = wc.WRID + 1
			s.left[k]--
		}
	}
}

// trouble fails a path, or closes a QP other than the last.
func (s *stress) trouble(t *testing.T, closing bool) {
	i, k := s.rng.IntN(2), s.rng.IntN(stressQPs)
	switch {
	case s.gone[k]:
	case closing && k > 0 && s.rng.IntN(4) == 0:
		must(t, s.qps[i][k].Close())
		s.gone[k], s.left[k] = true, 0
	default:
		paths := s.qps[i][k].(reliable.StatsReader).Paths()
		if len(paths) == 0 {
			return // the QP has not been used
		}
		if p := paths[s.rng.IntN(len(paths))]; p.QPN != 0 {
			must(t, s.sides[i].nic.FailQP(p.QPN))
		}
	}
}

// TestRandomTraffic moves random messages on three pairs of QPs with random settings and networks. Paths fail
// meanwhile, and QPs are closed, which must not affect the others.
func TestRandomTraffic(t *testing.T) {
	for seed := range uint64(24) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			s := newStress(t, seed)
			last := map[string]uint64{}
			var checks []func() bool
			for n := range stressOps {
				if check := s.post(t, n); check != nil {
					checks = append(checks, check)
				}
				for limit := s.now + s.rng.Int64N(100_000); s.now < limit; {
					s.step(limit, s.sides[:])
					s.poll(t, last)
				}
				if s.rng.IntN(8) == 0 {
					s.trouble(t, seed%2 == 1)
				}
			}
			for limit := s.now + int64(4*time.Second); s.left != [stressQPs]int{}; s.poll(t, last) {
				if s.now >= limit {
					t.Fatalf("%v completions are missing after 4 s, want none", s.left)
				}
				s.step(limit, s.sides[:])
			}
			for n, check := range checks {
				if !check() {
					t.Fatalf("the bytes of operation %d are wrong, want those that were posted", n)
				}
			}
		})
	}
}
