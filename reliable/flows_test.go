package reliable_test

import (
	"slices"
	"testing"
	"time"

	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

// TestConformanceOfFlows runs the suite on contexts where every four QPs share paths.
func TestConformanceOfFlows(t *testing.T) {
	pickVariant(t, 3)
	verbstest.Run(t, func(tb testing.TB) verbstest.Pair {
		link := softnic.NewMemoryLink(nil)
		var ctx [2]verbs.Context
		for i := range ctx {
			_, inner := openWithout(tb, link, nil, 0)
			var err error
			ctx[i], err = reliable.Wrap(inner, reliable.Config{Paths: 4, ChunkBytes: 4096, Flows: 4})
			must(tb, err)
			tb.Cleanup(func() { must(tb, ctx[i].Close()) })
		}
		return verbstest.Pair{A: ctx[0], B: ctx[1], Departures: departures()}
	})
}

// fan is QPs of two sides, connected one to one.
type fan struct {
	a, b   *side
	qa, qb []verbs.QP
}

// newFan connects n pairs of QPs, which share paths according to cfg.
func newFan(tb testing.TB, link softnic.Link, cfg reliable.Config, n, size int) *fan {
	tb.Helper()
	f := &fan{a: newSide(tb, link, cfg, size), b: newSide(tb, link, cfg, size)}
	f.qa, f.qb = []verbs.QP{f.a.qp}, []verbs.QP{f.b.qp}
	for range n - 1 {
		f.qa, f.qb = append(f.qa, f.a.another(tb)), append(f.qb, f.b.another(tb))
	}
	for i := range f.qa {
		join(tb, f.qa[i], f.qb[i])
	}
	return f
}

// pathOf returns the QPN of a QP's first path, or 0.
func pathOf(q verbs.QP) uint32 {
	if paths := q.(reliable.StatsReader).Paths(); len(paths) > 0 {
		return paths[0].QPN
	}
	return 0
}

// through returns the sides with QP i selected.
func (f *fan) through(i int) (a, b *side) {
	a, b = new(side), new(side)
	*a, *b = *f.a, *f.b
	a.qp, b.qp = f.qa[i], f.qb[i]
	return a, b
}

// TestSharedPaths moves messages of 64 QPs over the same four paths, which lose packets.
func TestSharedPaths(t *testing.T) {
	const n, size = 64, 20_000
	link, err := softnic.NewFaultLink(&softnic.FaultConfig{Seed: 1, Impairment: softnic.Impairment{Loss: 0.01}})
	must(t, err)
	f := newFan(t, link, reliable.Config{Paths: 4, ChunkBytes: 4096, RecvBytes: 64 * 4096, Flows: n}, n, 2*n*size)
	f.a.fill(3)
	for i := range n {
		rw := verbs.RecvWR{WRID: uint64(i)}
		rw.SetSGE(f.b.sge((n+i)*size, size))
		if k, err := f.qb[i].PostRecv([]verbs.RecvWR{rw}); k != 1 {
			t.Fatalf("PostRecv = %d, %v, want 1", k, err)
		}
		write := verbs.SendWR{Opcode: verbs.OpRDMAWrite, RemoteAddr: f.b.mr.Addr() + uint64(i*size), RKey: f.b.mr.RKey()}
		write.SetSGE(f.a.sge(i*size, size))
		send := verbs.SendWR{WRID: uint64(i), Opcode: verbs.OpSend, Flags: verbs.SendSignaled}
		send.SetSGE(f.a.sge((n+i)*size, size))
		if k, err := f.qa[i].PostSend([]verbs.SendWR{write, send}); k != 2 {
			t.Fatalf("PostSend = %d, %v, want 2", k, err)
		}
	}
	for _, s := range []*side{f.a, f.b} {
		seen := map[uint32]bool{}
		for _, wc := range s.wait(t, n) {
			must(t, wc.Err())
			seen[wc.QPN] = true
		}
		if len(seen) != n {
			t.Fatalf("completions of %d QPs, want %d", len(seen), n)
		}
	}
	if !slices.Equal(f.a.mem.Bytes(), f.b.mem.Bytes()) {
		t.Fatalf("the bytes differ")
	}
	for _, qps := range [][]verbs.QP{f.qa, f.qb} {
		for i, q := range qps {
			if pathOf(q) == 0 || pathOf(q) != pathOf(qps[0]) {
				t.Fatalf("QP %d has path %d, want that of the first, %d", i, pathOf(q), pathOf(qps[0]))
			}
		}
	}
	for op := verbs.OpRDMAWrite; op <= verbs.OpRDMARead; op++ {
		a, b := f.through(int(op) * 9)
		transfer(t, a, b, op, size)
	}
}

// TestOneOfManyFails: a QP that writes with a bad key fails, and QPs that share its paths continue.
func TestOneOfManyFails(t *testing.T) {
	f := newFan(t, softnic.NewMemoryLink(nil), reliable.Config{Paths: 4, Flows: 4}, 4, 1<<16)
	a, b := f.through(2)
	wr := verbs.SendWR{WRID: 1, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey() + 1}
	wr.SetSGE(a.sge(0, 100))
	a.post(t, wr)
	if wc := a.wait(t, 1)[0]; wc.Status != verbs.StatusRemAccessErr || wc.QPN != a.qp.Num() {
		t.Fatalf("completion %+v, want a remote access error", wc)
	}
	for start := time.Now(); a.qp.State() != verbs.StateErr || b.qp.State() != verbs.StateErr; time.Sleep(time.Millisecond) {
		if time.Since(start) > patience {
			t.Fatalf("the QPs are in %v and %v, want ERR", a.qp.State(), b.qp.State())
		}
	}
	for _, i := range []int{0, 1, 3} {
		a, b := f.through(i)
		transfer(t, a, b, verbs.OpRDMAWriteWithImm, 1<<16)
		if a.qp.State() != verbs.StateRTS || b.qp.State() != verbs.StateRTS {
			t.Fatalf("QP %d is in %v, its peer in %v, want RTS", i, a.qp.State(), b.qp.State())
		}
	}
}

// TestOneOfManyCloses closes QPs with outstanding requests: the others continue, and the last one closes the
// paths.
func TestOneOfManyCloses(t *testing.T) {
	reliable.OverUC(t, "QPs of its own to tell connections")
	f := newFan(t, softnic.NewMemoryLink(nil), reliable.Config{Paths: 4, Flows: 4}, 4, 1<<18)
	for i := range 3 {
		wr := verbs.SendWR{Opcode: verbs.OpRDMAWrite, RemoteAddr: f.b.mr.Addr(), RKey: f.b.mr.RKey()}
		wr.SetSGE(f.a.sge(0, 1<<18))
		if k, err := f.qa[i].PostSend([]verbs.SendWR{wr}); k != 1 {
			t.Fatalf("PostSend = %d, %v, want 1", k, err)
		}
		must(t, f.qa[i].Close())
		a, b := f.through(i + 1)
		transfer(t, a, b, verbs.OpSend, 1<<18)
	}
	// A new QP gets a new connection: all flow numbers of the old one are used.
	old := pathOf(f.qa[3])
	f.qa[0], f.qb[0] = f.a.another(t), f.b.another(t)
	join(t, f.qa[0], f.qb[0])
	a, b := f.through(0)
	transfer(t, a, b, verbs.OpSend, 1<<18)
	if got := pathOf(f.qa[0]); got == old {
		t.Fatalf("a new QP has path %d of a connection whose flows are used up, want a new connection", got)
	}
}

// TestWaitingRequestFails posts requests before the sides agree on a connection. One of them is invalid, so the QP fails while
// the requests are submitted. Each completes once.
func TestWaitingRequestFails(t *testing.T) {
	a, b := newPair(t, softnic.NewMemoryLink(nil), reliable.Config{Paths: 2, Flows: 2}, 64)
	bad := a.write(b, 0, 8)
	bad.SGE[0].LKey ^= 0x5555
	if n, err := a.qp.PostSend([]verbs.SendWR{bad, a.write(b, 8, 8), a.write(b, 16, 8)}); n != 3 {
		t.Fatalf("PostSend = %d, %v, want 3", n, err)
	}
	want := []verbs.Status{verbs.StatusLocProtErr, verbs.StatusWRFlushErr, verbs.StatusWRFlushErr}
	for i, wc := range a.wait(t, len(want)) {
		if wc.Status != want[i] {
			t.Errorf("request %d completes with %v, want %v", i, wc.Status, want[i])
		}
	}
	if n, err := a.cq.Poll(make([]verbs.WC, 4)); n != 0 || err != nil {
		t.Errorf("Poll = %d, %v, want no further completion", n, err)
	}
}
