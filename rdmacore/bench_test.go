//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package rdmacore_test

import (
	"fmt"
	"testing"

	"ibverbx/rdmacore"
	"ibverbx/verbs"
)

var batches = []int{1, 4, 16, 64}

// BenchmarkCgoPost measures the local cost of a post: check, build, and the call into C, with a
// driver that returns immediately.
func BenchmarkCgoPost(b *testing.B) {
	r := newRig(b, rdmacore.Config{}, verbs.RC)
	r.state.idle = 1
	for _, n := range batches {
		b.Run(fmt.Sprintf("wrs=%d", n), func(b *testing.B) {
			wrs := make([]verbs.SendWR, n)
			for i := range wrs {
				wrs[i] = verbs.SendWR{WRID: uint64(i), Opcode: verbs.OpRDMAWrite, RemoteAddr: 4096, RKey: 7}
				wrs[i].SetSGE(verbs.SGE{Addr: r.mr.Addr(), Length: 8, LKey: r.mr.LKey()})
			}
			before, loops := rdmacore.Crossings(r.qp), 0
			b.ReportAllocs()
			for b.Loop() {
				if k, err := r.qp.PostSend(wrs); k != n || err != nil {
					b.Fatalf("PostSend = %d, %v, want %d, nil", k, err, n)
				}
				loops++
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(loops*n), "ns/wr")
			b.ReportMetric(float64(rdmacore.Crossings(r.qp)-before)/float64(loops), "crossings/op")
		})
	}
}

// BenchmarkCgoPoll measures the local cost of polling a full CQ. The CQ is extended, and the
// stand-in driver only loads a field per call.
func BenchmarkCgoPoll(b *testing.B) { benchmarkPoll(b, rdmacore.Config{}) }

// BenchmarkCgoPollPlain is BenchmarkCgoPoll with a plain CQ.
func BenchmarkCgoPollPlain(b *testing.B) { benchmarkPoll(b, rdmacore.Config{PlainCQ: true}) }

func benchmarkPoll(b *testing.B, cfg rdmacore.Config) {
	r := newRig(b, cfg, verbs.RC)
	for _, n := range batches {
		b.Run(fmt.Sprintf("wcs=%d", n), func(b *testing.B) {
			r.state.endless = 1
			defer func() { r.state.endless = 0 }()
			wcs := make([]verbs.WC, n)
			before, loops := rdmacore.Crossings(r.cq), 0
			b.ReportAllocs()
			for b.Loop() {
				if k, err := r.cq.Poll(wcs); k != n || err != nil {
					b.Fatalf("Poll = %d, %v, want %d, nil", k, err, n)
				}
				loops++
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(loops*n), "ns/wc")
			b.ReportMetric(float64(rdmacore.Crossings(r.cq)-before)/float64(loops), "crossings/op")
		})
	}
}

// BenchmarkCgoPollEmpty measures a poll of an empty CQ.
func BenchmarkCgoPollEmpty(b *testing.B) { benchmarkPollEmpty(b, rdmacore.Config{}) }

// BenchmarkCgoPollEmptyPlain is BenchmarkCgoPollEmpty with a plain CQ.
func BenchmarkCgoPollEmptyPlain(b *testing.B) { benchmarkPollEmpty(b, rdmacore.Config{PlainCQ: true}) }

func benchmarkPollEmpty(b *testing.B, cfg rdmacore.Config) {
	r := newRig(b, cfg, verbs.RC)
	wcs := make([]verbs.WC, 16)
	b.ReportAllocs()
	for b.Loop() {
		if k, err := r.cq.Poll(wcs); k != 0 || err != nil {
			b.Fatalf("Poll = %d, %v, want 0, nil", k, err)
		}
	}
}
