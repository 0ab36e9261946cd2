package transfer

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/node"
	"ibverbx/verbs"
)

// nullNetworks are the networks of null NICs.
var nullNetworks = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}

// nullNetwork connects hosts by null NICs, which complete requests immediately without moving data.
func nullNetwork() *network {
	return &network{null: true, node: func(c *node.Config) { c.PeerNetworks = nullNetworks }}
}

// batch writes blocks of 8 bytes, in lists of 64.
func (r *raw) batch(b *testing.B, wrs []ibverbx.SendWR, lists int) {
	for range lists {
		if _, err := r.here.QP.PostSend(wrs); err != nil {
			b.Fatalf("PostSend: got %v, want no error", err)
		}
		for ended := false; !ended; {
			n, err := r.here.CQ.Poll(r.wcs[:])
			if err != nil {
				b.Fatalf("Poll: got %v, want no error", err)
			}
			ended = n > 0
		}
	}
}

// beyond runs two functions alternately, each with ops operations, and reports the median extra time of the
// second, in ns per operation.
func beyond(b *testing.B, ops int, first, second func()) {
	timed := func(f func()) float64 {
		begin := time.Now()
		f()
		return float64(time.Since(begin).Nanoseconds()) / float64(ops)
	}
	var raw, more []float64
	for b.Loop() {
		x, y := timed(first), timed(second)
		raw, more = append(raw, x), append(more, y-x)
	}
	slices.Sort(raw)
	slices.Sort(more)
	b.ReportMetric(raw[len(raw)/2], "ns-raw")
	b.ReportMetric(more[len(more)/2], "ns-beyond-raw")
}

// BenchmarkPutNull measures the overhead of an 8-byte Put over the bare VirtualQP, on a null NIC.
func BenchmarkPutNull(b *testing.B) {
	const ops = 1 << 14
	ctx := context.Background()
	b.Run("batch=64", func(b *testing.B) { // per block
		n := nullNetwork()
		r, p := newRaw(b, n), newPair(b, n, benchSize)
		wrs := make([]ibverbx.SendWR, 64)
		for i := range wrs {
			wrs[i] = ibverbx.SendWR{Opcode: verbs.OpRDMAWrite, Remote: r.remote, RemoteOffset: uint64(i) * 8}
			wrs[i].SetSGE(r.local.SGE(uint64(i)*8, 8))
		}
		wrs[63].Flags = verbs.SendSignaled
		batch := p.peer.Batch()
		beyond(b, ops, func() { r.batch(b, wrs, ops/64) }, func() {
			for range ops / 64 {
				for i := range int64(64) {
					batch.Put(p.remote.At(i*8), p.local.Slice(i*8, 8))
				}
				if err := batch.Submit(ctx).Wait(ctx); err != nil {
					b.Fatalf("Put: got %v, want no error", err)
				}
			}
		})
	})
	b.Run("single", func(b *testing.B) { // with 64 outstanding
		n := nullNetwork()
		r, p := newRaw(b, n), newPair(b, n, benchSize)
		window := make([]*Transfer, 64)
		beyond(b, ops, func() { r.write(b, ops, 64, 8) }, func() { p.puts(b, window, ops, 8) })
	})
	b.Run("goroutines=8", func(b *testing.B) {
		p := newPair(b, nullNetwork(), benchSize)
		var spent time.Duration
		rounds := 0
		for b.Loop() {
			begin := time.Now()
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() { p.puts(b, make([]*Transfer, 8), ops/8, 8) })
			}
			wg.Wait()
			spent += time.Since(begin)
			rounds++
		}
		b.ReportMetric(float64(rounds*ops)/spent.Seconds()/1e6, "M/s")
	})
}
