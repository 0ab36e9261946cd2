package softnic_test

import (
	"fmt"
	"testing"

	"ibverbx/softnic"
	"ibverbx/verbs"
)

const (
	kib = 1 << 10
	mib = 1 << 20
)

var benchSizes = []struct {
	name  string
	bytes int
}{{"8B", 8}, {"4KiB", 4 * kib}, {"64KiB", 64 * kib}, {"1MiB", mib}, {"16MiB", 16 * mib}}

// batch is the number of small requests per post: one doorbell and one acknowledgement.
const batch = 64

func batchFor(size int) int { return max(1, min(batch, mib/size)) }

// BenchmarkWrite posts chains of RC WRITEs, on several QPs in turn, and polls their
// completions.
func BenchmarkWrite(b *testing.B) {
	for _, s := range benchSizes {
		for _, qps := range []int{1, 16} {
			b.Run(fmt.Sprintf("size=%s/qps=%d", s.name, qps), func(b *testing.B) {
				benchOneSided(b, verbs.OpRDMAWrite, s.bytes, qps)
			})
		}
	}
}

func BenchmarkRead(b *testing.B) {
	b.Run("size=64KiB/qps=1", func(b *testing.B) { benchOneSided(b, verbs.OpRDMARead, 64*kib, 1) })
}

// BenchmarkWriteLatency posts one write and polls its completion.
func BenchmarkWriteLatency(b *testing.B) {
	b.Run("size=8B", func(b *testing.B) {
		w := newWork(b, verbs.OpRDMAWrite, 8, 1, 1)
		for b.Loop() {
			w.round(0)
		}
		w.report()
	})
}

func benchOneSided(b *testing.B, op verbs.Opcode, size, qps int) {
	w := newWork(b, op, size, qps, batchFor(size))
	q, n := 0, len(w.wrs)
	for done := 0; done < b.N; done += n {
		w.round(q)
		if q++; q == qps {
			q = 0
		}
	}
	w.report()
}

// work is a set of QPs that each carry chains of the same request.
type work struct {
	b   *testing.B
	cq  verbs.CQ
	qps []verbs.QP
	wrs []verbs.SendWR
	wcs []verbs.WC
}

func newWork(b *testing.B, op verbs.Opcode, size, qps, chain int) *work {
	r := newRig(b, softnic.NewMemoryLink(nil))
	src, srcMR := memory(b, r.pa, size)
	dst, dstMR := memory(b, r.pb, size)
	w := &work{b: b, cq: newCQ(b, r.ca, 2*batch), wrs: make([]verbs.SendWR, chain), wcs: make([]verbs.WC, batch)}
	remote := newCQ(b, r.cb, 2*batch)
	for range qps {
		qa, _ := r.pair(verbs.RC, w.cq, remote, batch)
		w.qps = append(w.qps, qa)
	}
	for i := range w.wrs {
		wr := &w.wrs[i]
		*wr = verbs.SendWR{WRID: uint64(i), Opcode: op, Flags: verbs.SendSignaled, RemoteAddr: dst.Addr(), RKey: dstMR.RKey()}
		wr.SetSGE(verbs.SGE{Addr: src.Addr(), Length: uint32(size), LKey: srcMR.LKey()})
	}
	b.ReportAllocs()
	b.SetBytes(int64(size))
	b.ResetTimer()
	return w
}

// round posts the chain on one QP and polls until it has completed.
func (w *work) round(q int) {
	n, err := w.qps[q].PostSend(w.wrs)
	if n != len(w.wrs) || err != nil {
		w.b.Fatalf("PostSend = %d, %v, want %d", n, err, len(w.wrs))
	}
	for left := n; left > 0; {
		n, err := w.cq.Poll(w.wcs)
		if err != nil {
			w.b.Fatal(err)
		}
		for i := range w.wcs[:n] {
			if w.wcs[i].Status != verbs.StatusSuccess {
				w.b.Fatal(w.wcs[i].Err())
			}
		}
		left -= n
	}
}

func (w *work) report() {
	w.b.ReportMetric(float64(w.b.N)/w.b.Elapsed().Seconds(), "msgs/s")
}

// BenchmarkSend posts receives on one side and sends on the other, in chains, and polls
// both completions.
func BenchmarkSend(b *testing.B) {
	b.Run("size=8B/qps=1", func(b *testing.B) {
		r := newRig(b, softnic.NewMemoryLink(nil))
		src, srcMR := memory(b, r.pa, 8)
		dst, dstMR := memory(b, r.pb, 8)
		cqA, cqB := newCQ(b, r.ca, 2*batch), newCQ(b, r.cb, 2*batch)
		qa, qb := r.pair(verbs.RC, cqA, cqB, batch)
		sends, recvs := make([]verbs.SendWR, batch), make([]verbs.RecvWR, batch)
		for i := range sends {
			sends[i] = verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled}
			sends[i].SetSGE(verbs.SGE{Addr: src.Addr(), Length: 8, LKey: srcMR.LKey()})
			recvs[i].SetSGE(verbs.SGE{Addr: dst.Addr(), Length: 8, LKey: dstMR.LKey()})
		}
		wcs := make([]verbs.WC, batch)
		b.ReportAllocs()
		b.SetBytes(8)
		b.ResetTimer()
		for done := 0; done < b.N; done += batch {
			if n, err := qb.PostRecv(recvs); n != batch {
				b.Fatal(n, err)
			}
			if n, err := qa.PostSend(sends); n != batch {
				b.Fatal(n, err)
			}
			drain(b, cqA, wcs)
			drain(b, cqB, wcs)
		}
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msgs/s")
	})
}

func drain(b *testing.B, cq verbs.CQ, wcs []verbs.WC) {
	for left := batch; left > 0; {
		n, err := cq.Poll(wcs)
		if err != nil {
			b.Fatal(err)
		}
		for i := range wcs[:n] {
			if wcs[i].Status != verbs.StatusSuccess {
				b.Fatal(wcs[i].Err())
			}
		}
		left -= n
	}
}

// BenchmarkCopy is the floor: Go's copy between the same kind of buffers.
func BenchmarkCopy(b *testing.B) {
	for _, s := range benchSizes {
		b.Run("size="+s.name, func(b *testing.B) {
			r := newRig(b, softnic.NewMemoryLink(nil))
			src, _ := memory(b, r.pa, s.bytes)
			dst, _ := memory(b, r.pb, s.bytes)
			from, to := src.Bytes(), dst.Bytes()
			b.ReportAllocs()
			b.SetBytes(int64(s.bytes))
			for b.Loop() {
				copy(to, from)
			}
		})
	}
}
