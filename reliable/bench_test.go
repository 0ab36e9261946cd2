package reliable_test

import (
	"testing"

	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// BenchmarkDatagrams is BenchmarkReliable over UD alone.
func BenchmarkDatagrams(b *testing.B) {
	benchmark(b, "/paths=16", func(tb testing.TB, size int) (x, y *side) {
		link := softnic.NewMemoryLink(nil)
		x, y = newDatagramSide(tb, link, reliable.Config{}, size), newDatagramSide(tb, link, reliable.Config{}, size)
		connect(tb, x, y)
		return x, y
	})
}

// TestNoAllocationsDatagrams is TestNoAllocations over UD alone.
func TestNoAllocationsDatagrams(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	const size = 1 << 20
	now := int64(0)
	clock := func() int64 { now += 100; return now }
	link := softnic.NewMemoryLink(&softnic.MemoryConfig{Now: clock})
	x, y := newDatagramSide(t, link, reliable.Config{Now: clock}, size), newDatagramSide(t, link, reliable.Config{Now: clock}, size)
	connect(t, x, y)
	allocatesNothing(t, x, y, size)
}

// newRaw returns two connected RC QPs of softnic itself, to compare with.
func newRaw(tb testing.TB, size int) (a, b *side) {
	tb.Helper()
	link := softnic.NewMemoryLink(nil)
	make1 := func() *side {
		nic, err := softnic.New(link, reliable.NICConfig())
		must(tb, err)
		s := &side{nic: nic}
		s.ctx, err = nic.Open()
		must(tb, err)
		s.pd, err = s.ctx.AllocPD()
		must(tb, err)
		s.cq, err = s.ctx.CreateCQ(verbs.CQConfig{Depth: 1024})
		must(tb, err)
		s.qp, err = s.pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: s.cq, RecvCQ: s.cq, MaxSendWR: 64, MaxRecvWR: 64})
		must(tb, err)
		s.mem, err = verbs.AllocMemory(size, nil)
		must(tb, err)
		s.mr, err = s.pd.RegisterMemory(s.mem, verbs.AccessAll)
		must(tb, err)
		tb.Cleanup(func() {
			must(tb, s.ctx.Close())
			must(tb, nic.Close())
			must(tb, s.mem.Free())
		})
		return s
	}
	a, b = make1(), make1()
	connect(tb, a, b)
	return a, b
}

// stream keeps eight WRITEs in flight, n in total, and polls both sides.
func stream(tb testing.TB, a, b *side, size, n int) {
	wrs := make([]verbs.SendWR, 1)
	wrs[0] = verbs.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(), NumSGE: 1}
	wrs[0].SGE[0] = a.sge(0, size)
	var wcs [16]verbs.WC
	for posted, done := 0, 0; done < n; {
		for posted < n && posted-done < 8 {
			if k, err := a.qp.PostSend(wrs); k != 1 {
				tb.Fatalf("PostSend = %d, %v, want 1", k, err)
			}
			posted++
		}
		if _, err := b.cq.Poll(wcs[:]); err != nil {
			tb.Fatalf("Poll = %v, want none", err)
		}
		k, err := a.cq.Poll(wcs[:])
		if err != nil {
			tb.Fatalf("Poll = %v, want none", err)
		}
		for _, wc := range wcs[:k] {
			if wc.Status != verbs.StatusSuccess {
				tb.Fatalf("completion %v, want success", wc.Status)
			}
		}
		done += k
	}
}

// benchmark measures a stream of WRITEs of several sizes. suffix stands behind the size in the
// name.
func benchmark(b *testing.B, suffix string, open func(tb testing.TB, size int) (x, y *side)) {
	for _, s := range []struct {
		name string
		size int
	}{{"8B", 8}, {"4KiB", 4 << 10}, {"64KiB", 64 << 10}, {"1MiB", 1 << 20}} {
		b.Run("size="+s.name+suffix, func(b *testing.B) {
			x, y := open(b, s.size)
			b.SetBytes(int64(s.size))
			b.ReportAllocs()
			b.ResetTimer()
			stream(b, x, y, s.size, b.N)
		})
	}
}

// BenchmarkReliable is a wrapped QP of 16 paths on a link in memory.
func BenchmarkReliable(b *testing.B) {
	benchmark(b, "/paths=16", func(tb testing.TB, size int) (x, y *side) {
		return newPair(tb, softnic.NewMemoryLink(nil), reliable.Config{}, size)
	})
}

// BenchmarkRC is an RC QP of the same NICs, to compare with.
func BenchmarkRC(b *testing.B) { benchmark(b, "", newRaw) }

// TestNoAllocations: messages of many chunks do not allocate, whatever their kind.
func TestNoAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	const size = 1 << 20
	now := int64(0)
	clock := func() int64 { now += 100; return now }
	x, y := newPair(t, softnic.NewMemoryLink(&softnic.MemoryConfig{Now: clock}), reliable.Config{Now: clock}, size)
	allocatesNothing(t, x, y, size)
}

// allocatesNothing moves messages of every kind and checks that they do not allocate.
func allocatesNothing(t *testing.T, x, y *side, size int) {
	t.Helper()
	stream(t, x, y, size, 20)
	wrs, recvs := make([]verbs.SendWR, 1), make([]verbs.RecvWR, 1)
	recvs[0].SetSGE(y.sge(0, size))
	var wcs [16]verbs.WC
	for op := verbs.OpRDMAWrite; op <= verbs.OpRDMARead; op++ {
		wrs[0] = verbs.SendWR{Opcode: op, Flags: verbs.SendSignaled, RemoteAddr: y.mr.Addr(), RKey: y.mr.RKey(), NumSGE: 1}
		wrs[0].SGE[0] = x.sge(0, size)
		takes := 0
		if op == verbs.OpRDMAWriteWithImm || op == verbs.OpSend || op == verbs.OpSendWithImm {
			takes = 1
		}
		n := testing.AllocsPerRun(50, func() {
			if k, err := y.qp.PostRecv(recvs[:takes]); k != takes {
				t.Fatalf("PostRecv = %d, %v, want %d", k, err, takes)
			}
			if k, err := x.qp.PostSend(wrs); k != 1 {
				t.Fatalf("PostSend = %d, %v, want 1", k, err)
			}
			for done := 0; done < 1+takes; {
				for _, s := range [...]*side{x, y} {
					k, err := s.cq.Poll(wcs[:])
					if err != nil {
						t.Fatalf("Poll = %v, want none", err)
					}
					done += k
				}
			}
		})
		if n != 0 {
			t.Errorf("%v: %v allocations per message of 32 chunks, want 0", op, n)
		}
	}
}
