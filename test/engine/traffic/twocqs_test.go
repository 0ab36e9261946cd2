package traffic_test

import (
	"bytes"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// newWriters returns n writers over the same NICs. Each has its own VirtualQP and VirtualCQ on both sides,
// and a chain of WRITEs of size bytes, so separate goroutines can use them without locking.
func newWriters(tb testing.TB, n, size, chain int, wrapped bool) []*writer {
	tb.Helper()
	links := enginetest.MemoryLinks(2)
	var hosts [2]*enginetest.Host
	for i := range hosts {
		var rails []ibverbx.RailConfig
		for _, link := range links {
			rails = append(rails, ibverbx.RailConfig{Context: openNIC(tb, link, wrapped)})
		}
		hosts[i] = enginetest.NewRailsOn(tb, rails...)
	}
	var all []*writer
	for range n {
		t := &writer{tb: tb, wrs: make([]ibverbx.SendWR, chain)}
		for i, h := range hosts {
			own := *h // the rails are the same
			own.NewCQ(ibverbx.CQConfig{})
			own.NewQP(ibverbx.Config{Lanes: 8, SendDepth: 2 * chain})
			t.ends[i] = &own
		}
		enginetest.Connect(tb, t.ends[0].QP, t.ends[1].QP)
		t.local, t.remote = hosts[0].Region(size), hosts[1].Region(size)
		for i := range t.wrs {
			t.wrs[i] = ibverbx.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Remote: t.remote.Remote()}
			t.wrs[i].SetSGE(t.local.SGE(0, uint32(size)))
		}
		all = append(all, t)
	}
	return all
}

// openNIC plugs a NIC into link and returns its context, with reliability in software if wrapped.
func openNIC(tb testing.TB, link softnic.Link, wrapped bool) verbs.Context {
	tb.Helper()
	nic, err := softnic.New(link, softnic.Config{})
	enginetest.Must(tb, err)
	tb.Cleanup(func() { enginetest.Must(tb, nic.Close()) })
	ctx, err := nic.Open()
	enginetest.Must(tb, err)
	if wrapped {
		ctx, err = reliable.Wrap(ctx, reliable.Config{})
		enginetest.Must(tb, err)
		tb.Cleanup(func() { enginetest.Must(tb, ctx.Close()) })
	}
	return ctx
}

// writer is a connection that posts chains of WRITEs.
type writer struct {
	tb            testing.TB
	ends          [2]*enginetest.Host
	local, remote *ibverbx.Region
	wrs           []ibverbx.SendWR
	wcs           [64]ibverbx.WC
}

// round posts the chain and polls both sides until it is complete. It reports success.
func (t *writer) round() bool {
	if n, err := t.ends[0].QP.PostSend(t.wrs); n != len(t.wrs) || err != nil {
		t.tb.Errorf("PostSend = %d, %v, want %d", n, err, len(t.wrs))
		return false
	}
	for done := 0; done < len(t.wrs); {
		for i, h := range t.ends {
			n, err := h.CQ.Poll(t.wcs[:])
			if err != nil {
				t.tb.Errorf("Poll of side %d: %v", i, err)
				return false
			}
			for k := range t.wcs[:n] {
				if err := t.wcs[k].Err(); err != nil {
					t.tb.Error(err)
					return false
				}
			}
			done += n
		}
	}
	return true
}

// TestTwoVirtualCQs: goroutines with separate VirtualQPs and VirtualCQs need no locking, even on the same
// NICs.
func TestTwoVirtualCQs(t *testing.T) {
	for _, wrapped := range []bool{false, true} {
		t.Run(fmt.Sprintf("wrapped=%v", wrapped), func(t *testing.T) {
			const size = 5000
			var wg sync.WaitGroup
			for i, c := range newWriters(t, 3, size, 1, wrapped) {
				wg.Go(func() {
					for k := range 100 {
						enginetest.Stamp(c.local.Bytes(), i, k)
						if !c.round() {
							return
						}
						if !bytes.Equal(c.remote.Bytes(), c.local.Bytes()) {
							t.Errorf("message %d of goroutine %d has other bytes", k, i)
							return
						}
					}
				})
			}
			wg.Wait()
		})
	}
}

// BenchmarkTwoVirtualCQs measures the gain from a second goroutine. Each goroutine has its own VirtualQP with
// 8 lanes and its own VirtualCQ, over the same two NICs. Turns of one and of two goroutines alternate. ratio
// is the median ratio of a two-goroutine turn to the preceding single one.
func BenchmarkTwoVirtualCQs(b *testing.B) {
	for _, wrapped := range []bool{false, true} {
		for _, size := range []int{8, 64 << 10} {
			b.Run(fmt.Sprintf("wrapped=%v/size=%d", wrapped, size), func(b *testing.B) {
				all := newWriters(b, 2, size, 64, wrapped)
				var rates [2][]float64
				var ratios []float64
				for b.Loop() {
					one, two := runWriters(all[:1]), runWriters(all)
					rates[0], rates[1] = append(rates[0], one), append(rates[1], two)
					ratios = append(ratios, two/one)
				}
				for i, r := range rates {
					slices.Sort(r)
					b.ReportMetric(r[len(r)/2]/1e6, fmt.Sprintf("Mmsg/s-%d", i+1))
				}
				slices.Sort(ratios)
				b.ReportMetric(ratios[len(ratios)/2], "ratio")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// runWriters runs every writer for 10 ms in a goroutine, and returns their total requests per second.
func runWriters(all []*writer) float64 {
	var wg sync.WaitGroup
	var done atomic.Int64
	begin := time.Now()
	for _, t := range all {
		wg.Go(func() {
			for time.Since(begin) < 10*time.Millisecond && t.round() {
				done.Add(int64(len(t.wrs)))
			}
		})
	}
	wg.Wait()
	return float64(done.Load()) / time.Since(begin).Seconds()
}
