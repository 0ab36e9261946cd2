package softnic_test

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ibverbx/softnic"
	"ibverbx/verbs"
)

// BenchmarkGoroutines measures the gain from a second goroutine on one memory link. Each has its own QPs and
// CQs. Turns of one and of two goroutines alternate. It reports the median rates, and the median ratio of a
// two-goroutine turn to the preceding single one.
func BenchmarkGoroutines(b *testing.B) {
	for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm, verbs.OpSend, verbs.OpRDMARead, verbs.OpAtomicFetchAndAdd} {
		for _, size := range []struct {
			name         string
			bytes, chain int
		}{{"8B", 8, 64}, {"8B", 8, 1}, {"64KiB", 64 * kib, 16}} {
			if op == verbs.OpAtomicFetchAndAdd && size.bytes > 8 {
				continue
			}
			b.Run(fmt.Sprintf("op=%v/size=%s/chain=%d", op, size.name, size.chain), func(b *testing.B) {
				benchGoroutines(b, op, size.bytes, size.chain)
			})
		}
	}
}

// turnTime is the duration of a turn.
const turnTime = 10 * time.Millisecond

func benchGoroutines(b *testing.B, op verbs.Opcode, size, chain int) {
	r := newRig(b, softnic.NewMemoryLink(nil))
	lanes := []*lane{newLane(r, op, size, chain), newLane(r, op, size, chain)}
	var rates [2][]float64
	var ratios []float64
	for range max(b.N, 1) {
		for i := range rates {
			rates[i] = append(rates[i], srqTurn(lanes[:i+1]))
		}
		ratios = append(ratios, rates[1][len(ratios)]/rates[0][len(ratios)])
	}
	b.ReportMetric(median(rates[0])/1e6, "Mmsg/s-1")
	b.ReportMetric(median(rates[1])/1e6, "Mmsg/s-2")
	b.ReportMetric(median(ratios), "ratio")
	b.ReportMetric(0, "ns/op")
}

func median(x []float64) float64 {
	x = slices.Sorted(slices.Values(x))
	return x[len(x)/2]
}

// turn runs one goroutine per lane for turnTime and returns their total requests per second.
func srqTurn(lanes []*lane) float64 {
	var wg sync.WaitGroup
	var done atomic.Int64
	begin := time.Now()
	for _, l := range lanes {
		wg.Go(func() {
			for time.Since(begin) < turnTime {
				for range 64 / len(l.sends) {
					l.round()
				}
				done.Add(int64(64 / len(l.sends) * len(l.sends)))
			}
		})
	}
	wg.Wait()
	return float64(done.Load()) / time.Since(begin).Seconds()
}

// lane is a pair of QPs with separate CQs, and a chain of requests.
type lane struct {
	tb       testing.TB
	qa, qb   verbs.QP
	cqA, cqB verbs.CQ
	sends    []verbs.SendWR
	recvs    []verbs.RecvWR
	wcs      []verbs.WC
}

func newLane(r *rig, op verbs.Opcode, size, chain int) *lane {
	_, src := memory(r.tb, r.pa, size)
	_, dst := memory(r.tb, r.pb, size)
	l := &lane{
		tb: r.tb, cqA: newCQ(r.tb, r.ca, 2*batch), cqB: newCQ(r.tb, r.cb, 2*batch),
		sends: make([]verbs.SendWR, chain), wcs: make([]verbs.WC, batch),
	}
	l.qa, l.qb = r.pair(verbs.RC, l.cqA, l.cqB, batch)
	for i := range l.sends {
		l.sends[i] = writeWR(src, dst, uint32(size))
		l.sends[i].Opcode = op
	}
	if op != verbs.OpRDMAWrite && op < verbs.OpRDMARead {
		l.recvs = make([]verbs.RecvWR, chain)
		for i := range l.recvs {
			l.recvs[i].SetSGE(verbs.SGE{Addr: dst.Addr(), Length: uint32(size), LKey: dst.LKey()})
		}
	}
	return l
}

// round posts the chain, with its receives, and polls all completions.
func (l *lane) round() {
	if len(l.recvs) > 0 {
		if n, err := l.qb.PostRecv(l.recvs); n != len(l.recvs) {
			l.tb.Error(n, err)
		}
	}
	if n, err := l.qa.PostSend(l.sends); n != len(l.sends) {
		l.tb.Error(n, err)
	}
	l.take(l.cqA, len(l.sends))
	l.take(l.cqB, len(l.recvs))
}

func (l *lane) take(cq verbs.CQ, left int) {
	for left > 0 {
		n, err := cq.Poll(l.wcs)
		if err != nil {
			l.tb.Error(err)
			return
		}
		for i := range l.wcs[:n] {
			if l.wcs[i].Status != verbs.StatusSuccess {
				l.tb.Error(l.wcs[i].Err())
			}
		}
		left -= n
	}
}

// BenchmarkManyPairs measures the cost of thousands of pairs. Two goroutines share them and write 8 bytes on
// each in sequence. ratio is their rate relative to two goroutines with one pair each, in alternating turns.
// us/shut is the time per open pair of a call that shuts all gates.
func BenchmarkManyPairs(b *testing.B) {
	const pairs = 4096
	r := newRig(b, softnic.NewMemoryLink(nil))
	var fleets [2][]*lane
	for i := range fleets {
		for range pairs / 2 {
			fleets[i] = append(fleets[i], newLane(r, verbs.OpRDMAWrite, 8, 64))
		}
	}
	sail := func(each int) float64 {
		var wg sync.WaitGroup
		var done atomic.Int64
		begin := time.Now()
		for _, fleet := range fleets {
			wg.Go(func() {
				for i := 0; i < each || time.Since(begin) < turnTime; i++ {
					fleet[i%each].round()
					done.Add(64)
				}
			})
		}
		wg.Wait()
		return float64(done.Load()) / time.Since(begin).Seconds()
	}
	var rates, ratios, shuts []float64
	for range max(b.N, 1) {
		for range 2 { // gates open in the first
			rates = append(rates, sail(pairs/2))
		}
		begin := time.Now()
		r.b.SetPort(true)
		shuts = append(shuts, float64(time.Since(begin).Nanoseconds())/1e3/pairs)
		sail(1)
		ratios = append(ratios, rates[len(rates)-1]/sail(1))
	}
	b.ReportMetric(median(rates)/1e6, "Mmsg/s")
	b.ReportMetric(median(ratios), "ratio")
	b.ReportMetric(median(shuts), "us/shut")
	b.ReportMetric(0, "ns/op")
}
