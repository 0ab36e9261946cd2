//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package rdmacore_test

import (
	"errors"
	"fmt"
	"testing"

	"ibverbx"
	"ibverbx/rdmacore"
	"ibverbx/verbs"
)

const (
	messageBatch    = 64   // requests posted before polling; also the engine's polling batch
	messageFragment = 4096 // bytes in a fragment
)

// watched is a context that records the QPs and CQs created by the engine.
type watched struct {
	verbs.Context
	qps []verbs.QP
	cqs []verbs.CQ
}

type watchedPD struct {
	verbs.PD
	ctx *watched
}

func (w *watched) AllocPD() (verbs.PD, error) {
	pd, err := w.Context.AllocPD()
	return &watchedPD{PD: pd, ctx: w}, err
}

func (w *watched) CreateCQ(cfg verbs.CQConfig) (verbs.CQ, error) {
	cq, err := w.Context.CreateCQ(cfg)
	w.cqs = append(w.cqs, cq)
	return cq, err
}

func (p *watchedPD) CreateQP(cfg verbs.QPConfig) (verbs.QP, error) {
	qp, err := p.PD.CreateQP(cfg)
	p.ctx.qps = append(p.ctx.qps, qp)
	return qp, err
}

// crossings returns the numbers of posts and polls in C.
func (w *watched) crossings() (posts, polls uint64) {
	for _, q := range w.qps {
		posts += rdmacore.Crossings(q)
	}
	for _, c := range w.cqs {
		polls += rdmacore.Crossings(c)
	}
	return posts, polls
}

// messages is the engine on the stand-in, with a batch of requests.
type messages struct {
	ctx   *watched
	state *standin
	cq    *ibverbx.VirtualCQ
	qp    *ibverbx.VirtualQP
	wrs   []ibverbx.SendWR
	wcs   []ibverbx.WC
	polls uint64 // of the VirtualCQ
}

// messageCase describes the requests of a batch.
type messageCase struct {
	scheme       ibverbx.Scheme
	op           verbs.Opcode
	lanes, frags int
}

// messageCases runs a test for each scheme, opcode, and number of lanes and fragments. A single
// lane passes requests through, so it has one fragment.
func messageCases(run func(name string, c messageCase)) {
	for _, scheme := range []ibverbx.Scheme{ibverbx.Tally, ibverbx.DQPLB, ibverbx.Spray} {
		for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm} {
			for _, size := range []struct{ lanes, frags int }{{1, 1}, {4, 1}, {4, 16}, {16, 1}, {16, 16}} {
				name := map[verbs.Opcode]string{verbs.OpRDMAWrite: "write", verbs.OpRDMAWriteWithImm: "writeimm"}[op]
				run(fmt.Sprintf("scheme=%s/op=%s/lanes=%d/frags=%d/side=send", scheme, name, size.lanes, size.frags),
					messageCase{scheme: scheme, op: op, lanes: size.lanes, frags: size.frags})
			}
		}
	}
}

func newMessages(tb testing.TB, c messageCase) *messages {
	tb.Helper()
	ctx, state := openStandin(tb, rdmacore.Config{})
	m := &messages{ctx: &watched{Context: ctx}, state: state, wcs: make([]ibverbx.WC, messageBatch)}
	rails, err := ibverbx.NewRails(ibverbx.RailConfig{Context: m.ctx})
	ok(tb, err, "NewRails")
	m.cq, err = rails.NewCQ(ibverbx.CQConfig{Depth: 1 << 15})
	ok(tb, err, "NewCQ")
	m.qp, err = m.cq.NewQP(ibverbx.Config{Lanes: c.lanes, Scheme: c.scheme, FragmentSize: messageFragment, LaneDepth: 256})
	ok(tb, err, "NewQP")
	card, err := m.qp.Card()
	ok(tb, err, "Card")
	ok(tb, m.qp.Connect(card), "Connect")
	mem, err := verbs.AllocMemory(c.frags*messageFragment, nil)
	ok(tb, err, "AllocMemory")
	region, err := rails.Register(mem, verbs.AccessAll)
	ok(tb, err, "Register")
	tb.Cleanup(func() {
		ok(tb, m.qp.Close(), "Close of the VirtualQP")
		ok(tb, m.cq.Close(), "Close of the VirtualCQ")
		ok(tb, region.Close(), "Close of the region")
		ok(tb, rails.Close(), "Close of the rails")
		ok(tb, mem.Free(), "Free")
	})
	m.wrs = make([]ibverbx.SendWR, messageBatch)
	for i := range m.wrs {
		m.wrs[i] = ibverbx.SendWR{WRID: uint64(i), Opcode: c.op, Flags: verbs.SendSignaled, Remote: region.Remote()}
		m.wrs[i].SetSGE(region.SGE(0, uint32(c.frags*messageFragment)))
	}
	return m
}

// batch posts all requests and polls all completions.
func (m *messages) batch(tb testing.TB) {
	polled := 0
	for left := m.wrs; len(left) > 0; {
		n, err := m.qp.PostSend(left)
		if err != nil && !errors.Is(err, verbs.ErrQueueFull) {
			tb.Fatalf("PostSend = %d, %v, want all or ErrQueueFull", n, err)
		}
		if left = left[n:]; len(left) > 0 {
			polled += m.poll(tb)
		}
	}
	for polled < messageBatch {
		polled += m.poll(tb)
	}
}

func (m *messages) poll(tb testing.TB) int {
	m.polls++
	n, err := m.cq.Poll(m.wcs)
	if err != nil || n > 0 && m.wcs[0].Status != verbs.StatusSuccess {
		tb.Fatalf("Poll = %d, %v, first status %q, want success", n, err, m.wcs[0].Status)
	}
	return n
}

// BenchmarkMessageCgo measures the cost of a request from the engine through this provider to a
// driver that completes immediately: 64 requests are posted, then polled.
func BenchmarkMessageCgo(b *testing.B) {
	messageCases(func(name string, c messageCase) {
		b.Run(name, func(b *testing.B) {
			m := newMessages(b, c)
			m.batch(b)
			b.ReportAllocs()
			b.ResetTimer()
			for done := 0; done < b.N; done += messageBatch {
				m.batch(b)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N), "ns/msg")
		})
	})
}

// Each chain and each poll of the engine is one call into C: one per doorbell, and at most one poll
// per batch of completions plus one of the empty queue. The data path does not allocate.
func TestEngineCrossings(t *testing.T) {
	messageCases(func(name string, c messageCase) {
		t.Run(name, func(t *testing.T) {
			m := newMessages(t, c)
			m.wcs = make([]ibverbx.WC, 4*messageBatch) // too large to limit a poll
			m.batch(t)
			stats, doorbells, driver, calls := m.qp.Stats(), m.state.doorbells, m.state.polls, m.polls
			posts, polls := m.ctx.crossings()
			const rounds = 10
			for range rounds {
				m.batch(t)
			}
			now := m.qp.Stats()
			rung := now.Doorbells - stats.Doorbells
			postsNow, pollsNow := m.ctx.crossings()
			posts, polls = postsNow-posts, pollsNow-polls
			if posts != rung || m.state.doorbells-doorbells != rung {
				t.Errorf("%d crossings and %d doorbells of the driver for %d chains, want one each", posts, m.state.doorbells-doorbells, rung)
			}
			if sent := now.Fragments - stats.Fragments; sent < uint64(rounds*messageBatch*c.frags) || rung*2 > sent {
				t.Errorf("%d chains of %d requests, want all requests, in chains of several", rung, sent)
			}
			if polls != m.state.polls-driver {
				t.Errorf("%d crossings for %d polls of the driver, want one each", polls, m.state.polls-driver)
			}
			calls = m.polls - calls
			if full := (now.CQEs - stats.CQEs) / messageBatch; polls < calls || polls > calls+full {
				t.Errorf("%d crossings for %d polls of the VirtualCQ and %d completions, want %d to %d", polls, calls, now.CQEs-stats.CQEs, calls, calls+full)
			}
			if allocs := testing.AllocsPerRun(20, func() { m.batch(t) }); allocs != 0 {
				t.Errorf("a batch allocates %v times, want 0", allocs)
			}
		})
	})
}
