//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package cuda_test

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"ibverbx/cuda"
	"ibverbx/verbs"
)

// TestUDPWaitsForTheStream: over UDP too, a completion is reported only after the synchronization
// of its copies.
func TestUDPWaitsForTheStream(t *testing.T) {
	g, f := open(t)
	host, err := verbs.AllocMemory(1<<16, nil)
	ok(t, err, "AllocMemory")
	t.Cleanup(func() { ok(t, host.Free(), "Free") })
	w := newWire(t, onUDP(t), host, alloc(t, g, 1<<16))
	reopen := f.shut()
	done, waits := make(chan verbs.Status, 1), make(chan error, 1)
	go func() {
		s := w.write(t, make([]verbs.SendWR, 64), 1024)
		waits <- fmt.Errorf("completion with %v", s)
		done <- s
	}()
	f.awaitSynchronization(t, waits)
	if n := atomic.LoadInt64(&f.copied); n != 0 || len(done) > 0 {
		t.Errorf("%d copies and %d completions before the synchronization, want none", n, len(done))
	}
	reopen()
	if s := <-done; s != verbs.StatusSuccess {
		t.Errorf("the WRITEs end with %v, want success", s)
	}
	if n := atomic.LoadInt64(&f.copied); n >= 64 {
		t.Errorf("%d copies of 64 WRITEs in a row, want fewer", n)
	}
}

// TestUDPLost: losing the GPU while data is on its way to or from it fails the request.
func TestUDPLost(t *testing.T) {
	for _, fromGPU := range []bool{false, true} {
		d, f := load(t)
		g, err := d.Open(0)
		ok(t, err, "Open")
		host, err := verbs.AllocMemory(1<<20, nil)
		ok(t, err, "AllocMemory")
		mem, err := g.Alloc(1 << 20)
		ok(t, err, "Alloc")
		t.Run(fmt.Sprintf("from GPU=%v", fromGPU), func(t *testing.T) {
			from, to := host, mem
			if fromGPU {
				from, to = mem, host
			}
			w := newWire(t, onUDP(t), from, to)
			reopen := f.shut()
			done, waits := make(chan verbs.Status, 1), make(chan error, 1)
			go func() {
				s := w.write(t, make([]verbs.SendWR, 4), 1<<18)
				waits <- fmt.Errorf("completion with %v", s)
				done <- s
			}()
			f.awaitSynchronization(t, waits)
			atomic.StoreInt64(&f.lost, 719)
			reopen()
			if s := <-done; s == verbs.StatusSuccess {
				t.Error("the WRITEs succeed")
			}
		})
		for _, m := range []*verbs.Memory{mem, host} {
			if err := m.Free(); err != nil && !errors.Is(err, cuda.ErrDeviceLost) {
				t.Errorf("Free = %v, want nil or the loss of the GPU", err)
			}
		}
		_ = g.Close() // it reports the loss
		f.settled(t)
	}
}

// BenchmarkGPUUDP measures a stream of WRITEs over UDP on loopback, alternating between host and
// GPU memory. "ratio" is the median ratio of their durations within one run.
func BenchmarkGPUUDP(b *testing.B) {
	g := onGPU(b)
	const most = 64 << 20
	x, y := alloc(b, g, most), alloc(b, g, most)
	var host [2]*verbs.Memory
	for i := range host {
		m, err := verbs.AllocMemory(most, nil)
		ok(b, err, "AllocMemory")
		b.Cleanup(func() { ok(b, m.Free(), "Free") })
		host[i] = m
	}
	for _, v := range []struct {
		name     string
		from, to *verbs.Memory
	}{{"host to device", host[0], x}, {"device to host", x, host[1]}, {"device to device", x, y}} {
		for _, size := range []int{4 << 10, 64 << 10, 1 << 20, 16 << 20} {
			b.Run(fmt.Sprintf("%s/size=%d", v.name, size), func(b *testing.B) {
				wires := [2]*wire{newWire(b, onUDP(b), host[0], host[1]), newWire(b, onUDP(b), v.from, v.to)}
				var ratios []float64
				var total [2]time.Duration
				turn := func() {
					var took [2]time.Duration
					for i, w := range wires {
						began := time.Now()
						w.stream(b, most, size)
						took[i] = time.Since(began)
						total[i] += took[i]
					}
					ratios = append(ratios, float64(took[0])/float64(took[1]))
				}
				turn() // allocates the staging buffers
				ratios, total = ratios[:0], [2]time.Duration{}
				for b.Loop() {
					turn()
				}
				slices.Sort(ratios)
				bytes := float64(len(ratios)*most) / 1e6
				b.ReportMetric(bytes/total[0].Seconds(), "host-MB/s")
				b.ReportMetric(bytes/total[1].Seconds(), "MB/s")
				b.ReportMetric(ratios[len(ratios)/2], "ratio")
			})
		}
	}
}

// stream writes total bytes in WRITEs of size bytes. It posts the next ones once the oldest quarter
// of the outstanding ones has completed.
func (w *wire) stream(tb testing.TB, total, size int) {
	wrs := make([]verbs.SendWR, min(total/size/4, 250))
	posted, ended := 0, 0
	var wcs [4]verbs.WC
	for deadline := time.Now().Add(time.Minute); ended < total/size; {
		for posted < total/size && posted-ended <= 3*len(wrs) {
			chain := wrs[:min(len(wrs), total/size-posted)]
			for i := range chain {
				off := uint64((posted + i) * size)
				chain[i] = verbs.SendWR{WRID: uint64(len(chain)), Opcode: verbs.OpRDMAWrite, RemoteAddr: w.to.Addr() + off, RKey: w.to.RKey(), NumSGE: 1}
				chain[i].SGE[0] = verbs.SGE{Addr: w.from.Addr() + off, Length: uint32(size), LKey: w.from.LKey()}
			}
			chain[len(chain)-1].Flags = verbs.SendSignaled
			if k, err := w.qp.PostSend(chain); k != len(chain) || err != nil {
				tb.Fatalf("PostSend = %d, %v, want %d and nil", k, err, len(chain))
			}
			posted += len(chain)
		}
		n, err := w.cq.Poll(wcs[:])
		if err != nil || time.Now().After(deadline) {
			tb.Fatalf("%d of %d WRITEs have ended: %v", ended, total/size, err)
		}
		for _, wc := range wcs[:n] {
			if wc.Status != verbs.StatusSuccess {
				tb.Fatal(wc.Status)
			}
			ended += int(wc.WRID)
		}
	}
}
