package reliable_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// lagging is a context whose path QPs, while lag is set, defer posted requests until catchUp.
type lagging struct {
	interposer
	lag bool
	qps []*laggingQP
}

type laggingQP struct {
	verbs.QP
	ctx  *lagging
	kept []verbs.SendWR
}

func newLagging() *lagging {
	c := &lagging{}
	c.qp = func(typ verbs.QPType, q verbs.QP) verbs.QP {
		if typ != verbs.UC {
			return q
		}
		slow := &laggingQP{QP: q, ctx: c}
		c.qps = append(c.qps, slow)
		return slow
	}
	return c
}

func (q *laggingQP) PostSend(wrs []verbs.SendWR) (int, error) {
	if q.ctx.lag {
		q.kept = append(q.kept, slices.Clone(wrs)...)
		return len(wrs), nil
	}
	return q.QP.PostSend(wrs)
}

// keeps reports whether a QP keeps a request.
func (c *lagging) keeps() bool {
	return slices.ContainsFunc(c.qps, func(q *laggingQP) bool { return len(q.kept) > 0 })
}

// catchUp posts the deferred requests.
func (c *lagging) catchUp(tb testing.TB) {
	tb.Helper()
	c.lag = false
	for _, q := range c.qps {
		_, err := q.QP.PostSend(q.kept)
		must(tb, err)
		q.kept = nil
	}
}

// closing is a case of TestReadRegionCloses.
type closing struct {
	name    string
	arrives bool // the response arrives and its acknowledgement is lost; otherwise the response is lost
	posted  bool // the second response is at the NIC when the region is closed
}

// TestReadRegionCloses closes the region of a READ before its responder knows that the response has arrived,
// so it responds again. A requester that has the response continues, and so does the responder's QP.
// Otherwise the READ fails with REM_ACCESS_ERR.
func TestReadRegionCloses(t *testing.T) {
	reliable.OverUC(t, "QPs of its own to slow down")
	for _, tt := range []closing{
		{"before the answer is repeated", true, false},
		{"while the answer is repeated", true, true},
		{"before the answer arrives", false, false},
		{"while the lost answer is repeated", false, true},
	} {
		for _, size := range []int{100, 10_000} {
			t.Run(fmt.Sprintf("%s, %d bytes", tt.name, size), func(t *testing.T) { tt.run(t, size) })
		}
	}
}

func (tt closing) run(t *testing.T, size int) {
	w := newWorld(t, softnic.Impairment{Delay: 10 * time.Microsecond})
	cfg := w.config(reliable.Config{Paths: 2, ChunkBytes: 4096})
	slow := newLagging()
	a := newSide(t, w.link, cfg, 20_000)
	b := newSideOver(t, w.link, cfg, 20_000, slow.over)
	connect(t, a, b)
	until := func(what string, done func() bool) {
		t.Helper()
		for limit := w.now + int64(time.Second); !done(); w.step(limit, []*side{a, b}) {
			if w.now >= limit {
				t.Fatalf("%s: not after 1 s", what)
			}
		}
	}
	stats := b.qp.(reliable.StatsReader).Stats
	a.post(t, a.read(b, 0, 100)) // connects both ends
	w.polled(t, a, 1, verbs.StatusSuccess, a, b)

	mem := b.shelf(t, size, 7)
	wr := a.read(b, 0, size)
	wr.RemoteAddr, wr.RKey = mem.mr.Addr(), mem.mr.RKey()
	from, to, before := a, b, stats().Chunks
	if !tt.arrives {
		from, to = b, a
		w.link.Cut(from.nic, to.nic)
	}
	a.post(t, wr)
	until("answer", func() bool { return stats().Chunks > before })
	slow.lag = tt.posted
	if tt.arrives {
		w.link.Cut(from.nic, to.nic)
		w.polled(t, a, 1, verbs.StatusSuccess, a, b)
	}
	if tt.posted {
		until("second answer", slow.keeps)
	}
	must(t, mem.mr.Close())
	slow.catchUp(t)
	again := stats().Retransmitted
	until("answer without memory", func() bool { return stats().Retransmitted > again })
	w.link.Restore(from.nic, to.nic)
	if !tt.arrives {
		w.polled(t, a, 1, verbs.StatusRemAccessErr, a, b)
		return
	}
	if !slices.Equal(a.mem.Bytes()[:size], mem.mem.Bytes()) {
		t.Errorf("the bytes of the READ differ")
	}
	a.post(t, a.read(b, 0, 10_000))
	w.polled(t, a, 1, verbs.StatusSuccess, a, b)
	if s := b.qp.State(); s != verbs.StateRTS {
		t.Errorf("the responder's QP is %v, want RTS", s)
	}
}
