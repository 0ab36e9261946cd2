package reliable

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"ibverbx/verbs"
)

// nullPair is a connection between two wrapped null NICs. One goroutine drives both ends.
type nullPair struct {
	cqs [2]verbs.CQ
	qps [2]verbs.QP
	wrs [1]verbs.SendWR // a WRITE from the first end to the second
	wcs [16]verbs.WC
}

// newNullPairs connects two QPs of one wrapped context to two QPs of another. Each has a separate CQ. engines
// is the PD's engine limit.
func newNullPairs(tb testing.TB, size, engines int) []*nullPair {
	tb.Helper()
	net, pairs := newNullNet(), []*nullPair{{}, {}}
	var mrs [2]verbs.MR
	for i := range mrs {
		ctx, err := Wrap(net.open(fmt.Sprint("null", i), uint32(i+1)<<16), Config{})
		fatal(tb, err)
		ctx.(*pathContext).maxEngines = engines
		pd, err := ctx.AllocPD()
		fatal(tb, err)
		mem, err := verbs.AllocMemory(size, nil)
		fatal(tb, err)
		mrs[i], err = pd.RegisterMemory(mem, verbs.AccessAll)
		fatal(tb, err)
		tb.Cleanup(func() {
			fatal(tb, ctx.Close())
			fatal(tb, mrs[i].Close())
			fatal(tb, mem.Free())
		})
		for _, p := range pairs {
			p.cqs[i], err = ctx.CreateCQ(verbs.CQConfig{Depth: 64})
			fatal(tb, err)
			p.qps[i], err = pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: p.cqs[i], RecvCQ: p.cqs[i], MaxSendWR: 8, MaxRecvWR: 1})
			fatal(tb, err)
		}
	}
	for _, p := range pairs {
		for i, q := range p.qps {
			ep, err := p.qps[1-i].Endpoint()
			fatal(tb, err)
			fatal(tb, q.Connect(ep))
		}
		p.wrs[0] = verbs.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, RemoteAddr: mrs[1].Addr(), RKey: mrs[1].RKey()}
		p.wrs[0].SetSGE(verbs.SGE{Addr: mrs[0].Addr(), Length: uint32(size), LKey: mrs[0].LKey()})
	}
	return pairs
}

// run writes n messages, eight at a time.
func (p *nullPair) run(n int) error {
	for posted, done := 0, 0; done < n; {
		for ; posted < n && posted-done < 8; posted++ {
			if _, err := p.qps[0].PostSend(p.wrs[:]); err != nil {
				return err
			}
		}
		for _, cq := range p.cqs {
			k, err := cq.Poll(p.wcs[:])
			if err != nil {
				return err
			}
			for i := range p.wcs[:k] {
				if err := p.wcs[i].Err(); err != nil {
					return err
				}
			}
			done += k
		}
	}
	return nil
}

// runAll runs n messages on every pair, each in a separate goroutine, and returns the elapsed time.
func runAll(tb testing.TB, pairs []*nullPair, n int) time.Duration {
	tb.Helper()
	errs := make(chan error, len(pairs))
	start := time.Now()
	for _, p := range pairs {
		go func() { errs <- p.run(n) }()
	}
	for range pairs {
		fatal(tb, <-errs)
	}
	return time.Since(start)
}

// BenchmarkEngines runs two busy connections on two cores and reports their rate relative to a single one:
// the median of rounds that measure both alternately.
//
//	one-engine    both in one engine: they wait for each other
//	two-engines   of one wrapped context, each in a separate engine
//	two-contexts  of two wrapped contexts, which share nothing: the machine's current upper bound
func BenchmarkEngines(b *testing.B) {
	const rounds = 9
	for _, size := range []int{8, 64 << 10} {
		b.Run(fmt.Sprintf("size=%dB", size), func(b *testing.B) {
			one, two := newNullPairs(b, size, 1), newNullPairs(b, size, 2)
			kinds := []struct {
				name   string
				pairs  []*nullPair
				ratios []float64
			}{{"one-engine", one, nil}, {"two-engines", two, nil}, {"two-contexts", []*nullPair{one[0], two[0]}, nil}}
			b.ReportAllocs()
			b.ResetTimer()
			for range rounds {
				for i := range kinds {
					k := &kinds[i]
					alone := runAll(b, k.pairs[:1], b.N)
					k.ratios = append(k.ratios, 2*float64(alone)/float64(runAll(b, k.pairs, b.N)))
				}
			}
			for _, k := range kinds {
				slices.Sort(k.ratios)
				b.ReportMetric(k.ratios[rounds/2], k.name)
			}
		})
	}
}

// TestConnectionsOverNullNIC: the null NIC of the benchmark carries connections of one engine and of two.
func TestConnectionsOverNullNIC(t *testing.T) {
	for _, engines := range []int{1, 2} {
		pairs := newNullPairs(t, 100_000, engines)
		runAll(t, pairs, 1000)
		for i := range 2 {
			if apart := pairs[0].qps[i].(*qp).engine != pairs[1].qps[i].(*qp).engine; apart != (engines == 2) {
				t.Errorf("the QPs of end %d have engines of their own: %v, want %v", i, apart, engines == 2)
			}
		}
	}
}
