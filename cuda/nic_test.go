//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package cuda_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"ibverbx/cuda"
	"ibverbx/softnic"
	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

// contexts opens two software NICs, at the given addresses if any.
func contexts(tb testing.TB, link softnic.Link, addrs ...string) (x [2]verbs.Context) {
	tb.Helper()
	for i := range x {
		cfg := softnic.Config{}
		if len(addrs) > 0 {
			cfg.Addr = netip.MustParseAddr(addrs[i])
		}
		nic, err := softnic.New(link, cfg)
		ok(tb, err, "New")
		tb.Cleanup(func() { ok(tb, nic.Close(), "Close of the NIC") })
		x[i], err = nic.Open()
		ok(tb, err, "Open of the NIC")
	}
	return x
}

// checkConformance runs the verbs conformance suite on GPU memory.
func checkConformance(t *testing.T, g *cuda.GPU, open func(tb testing.TB) [2]verbs.Context) {
	t.Helper()
	verbstest.Run(t, func(tb testing.TB) verbstest.Pair {
		x := open(tb)
		return verbstest.Pair{A: x[0], B: x[1], Device: true, Alloc: func(size int) (*verbs.Memory, error) {
			m, err := g.Alloc(size)
			if err == nil && size <= 64<<20 { // longer regions are never read
				_, err = m.WriteAt(make([]byte, size), 0)
			}
			return m, err
		}}
	})
}

func onMemoryLink(tb testing.TB) [2]verbs.Context {
	tb.Helper()
	return contexts(tb, softnic.NewMemoryLink(nil))
}

func onUDP(tb testing.TB) [2]verbs.Context {
	tb.Helper()
	link, err := softnic.NewUDPLink(nil)
	ok(tb, err, "NewUDPLink")
	return contexts(tb, link, "127.0.0.1", "127.0.0.2")
}

// TestConformance runs the suite on the stand-in.
func TestConformance(t *testing.T) {
	g, f := open(t)
	f.total = 1 << 30
	t.Run("memory", func(t *testing.T) { checkConformance(t, g, onMemoryLink) })
	t.Run("udp", func(t *testing.T) { checkConformance(t, g, onUDP) })
}

// TestGPUConformance runs the suite on a GPU.
func TestGPUConformance(t *testing.T) {
	g := onGPU(t)
	t.Run("memory", func(t *testing.T) { checkConformance(t, g, onMemoryLink) })
	t.Run("udp", func(t *testing.T) { checkConformance(t, g, onUDP) })
}

// wire is a QP with registered memory on both sides.
type wire struct {
	qp       verbs.QP
	cq       verbs.CQ
	from, to verbs.MR
}

// newWire connects two QPs and registers memory, for the duration of the test.
func newWire(tb testing.TB, x [2]verbs.Context, from, to *verbs.Memory) *wire {
	tb.Helper()
	w := &wire{}
	var qps [2]verbs.QP
	for i, mem := range []*verbs.Memory{from, to} {
		pd, err := x[i].AllocPD()
		ok(tb, err, "AllocPD")
		cq, err := x[i].CreateCQ(verbs.CQConfig{Depth: 2048})
		ok(tb, err, "CreateCQ")
		qps[i], err = pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, MaxSendWR: 1024, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1})
		ok(tb, err, "CreateQP")
		mr, err := pd.RegisterMemory(mem, verbs.AccessAll)
		ok(tb, err, "RegisterMemory")
		tb.Cleanup(func() { ok(tb, mr.Close(), "Close of the region") })
		if i == 0 {
			w.qp, w.cq, w.from = qps[0], cq, mr
		} else {
			w.to = mr
		}
	}
	for i, q := range qps {
		e, err := qps[1-i].Endpoint()
		ok(tb, err, "Endpoint")
		ok(tb, q.Connect(e), "Connect")
	}
	return w
}

// write writes blocks of n bytes with one post, and returns the first completion's status.
func (w *wire) write(tb testing.TB, wrs []verbs.SendWR, n int) verbs.Status {
	w.fill(wrs, n)
	return w.post(tb, wrs)
}

// fill prepares WRITEs of n-byte blocks. Only the last one is signaled.
func (w *wire) fill(wrs []verbs.SendWR, n int) {
	for i := range wrs {
		off := uint64(i * n)
		wrs[i] = verbs.SendWR{Opcode: verbs.OpRDMAWrite, RemoteAddr: w.to.Addr() + off, RKey: w.to.RKey(), NumSGE: 1}
		wrs[i].SGE[0] = verbs.SGE{Addr: w.from.Addr() + off, Length: uint32(n), LKey: w.from.LKey()}
	}
	wrs[len(wrs)-1].Flags = verbs.SendSignaled
}

// post posts requests and returns the status of the first completion.
func (w *wire) post(tb testing.TB, wrs []verbs.SendWR) verbs.Status {
	if k, err := w.qp.PostSend(wrs); k != len(wrs) || err != nil {
		tb.Errorf("PostSend = %d, %v, want %d and nil", k, err, len(wrs))
		return verbs.StatusGeneralErr
	}
	var wcs [1]verbs.WC
	for deadline := time.Now().Add(time.Minute); ; {
		if k, err := w.cq.Poll(wcs[:]); k == 1 {
			return wcs[0].Status
		} else if err != nil || time.Now().After(deadline) {
			tb.Errorf("no completion: %v", err)
			return verbs.StatusGeneralErr
		}
	}
}

// checkWrites writes between GPU and host memory.
func checkWrites(t *testing.T, g *cuda.GPU) {
	t.Helper()
	const n = 1 << 20
	host, err := verbs.AllocMemory(n, nil)
	ok(t, err, "AllocMemory")
	t.Cleanup(func() { ok(t, host.Free(), "Free") })
	all := []*verbs.Memory{alloc(t, g, n), alloc(t, g, n), host}
	for _, open := range []func(testing.TB) [2]verbs.Context{onMemoryLink, onUDP} {
		for i, from := range all {
			for k, to := range all {
				if i == k {
					continue
				}
				t.Run(fmt.Sprintf("%d to %d", i, k), func(t *testing.T) {
					want, got := pattern(n, i*10+k), make([]byte, n)
					_, err := from.WriteAt(want, 0)
					ok(t, err, "WriteAt")
					if s := newWire(t, open(t), from, to).write(t, make([]verbs.SendWR, 64), n/64); s != verbs.StatusSuccess {
						t.Fatalf("the WRITEs end with %v", s)
					}
					if _, err := to.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
						t.Errorf("ReadAt = %v, want nil and the bytes that were written", err)
					}
				})
			}
		}
	}
}

func TestWrites(t *testing.T)    { g, _ := open(t); checkWrites(t, g) }
func TestGPUWrites(t *testing.T) { checkWrites(t, onGPU(t)) }

// TestWriteWaitsForTheStream: a completion is reported only after the synchronization of its
// copies. A chain has one synchronization, and the GPU starts before all its copies are queued.
func TestWriteWaitsForTheStream(t *testing.T) {
	g, f := open(t)
	const chain, block = 1000, 1024
	w := newWire(t, onMemoryLink(t), alloc(t, g, chain*block), alloc(t, g, chain*block))
	before := atomic.LoadInt64(&f.calls[callSync])
	reopen := f.shut()
	done := make(chan verbs.Status, 1)
	waits := make(chan error, 1) // fails awaitSynchronization on an early completion
	go func() {
		s := w.write(t, make([]verbs.SendWR, chain), block)
		waits <- fmt.Errorf("completion with %v", s)
		done <- s
	}()
	f.awaitSynchronization(t, waits)
	if atomic.LoadInt64(&f.copied) != 0 || len(done) > 0 {
		t.Errorf("%d copies and %d completions before the synchronization, want none", f.copied, len(done))
	}
	reopen()
	if s := <-done; s != verbs.StatusSuccess {
		t.Errorf("the WRITEs end with %v, want success", s)
	}
	if n := atomic.LoadInt64(&f.calls[callSync]) - before; n != 1 || f.copied != chain || f.calls[callLaunch] < 2 {
		t.Errorf("%d copies with %d launches and %d synchronizations, want %d with several and 1", f.copied, f.calls[callLaunch], n, chain)
	}
}

// TestWriteFails: a WRITE fails whichever call of the driver fails, and if the GPU is lost during
// the copy.
func TestWriteFails(t *testing.T) {
	for _, open := range []func(testing.TB) [2]verbs.Context{onMemoryLink, onUDP} {
		for _, call := range []int{callPush, callCopy, callSync} {
			checkWriteFails(t, open, func(f *fake) { f.failWith(call, 304) })
		}
		checkWriteFails(t, open, func(f *fake) { f.lost = 719 })
	}
}

func checkWriteFails(t *testing.T, open func(testing.TB) [2]verbs.Context, fail func(f *fake)) {
	t.Helper()
	d, f := load(t)
	g, err := d.Open(0)
	ok(t, err, "Open")
	from, err := g.Alloc(10_000)
	ok(t, err, "Alloc")
	to, err := g.Alloc(10_000)
	ok(t, err, "Alloc")
	t.Run("write", func(t *testing.T) {
		w := newWire(t, open(t), from, to)
		fail(f)
		if s := w.write(t, make([]verbs.SendWR, 2), 5000); s == verbs.StatusSuccess {
			t.Error("the WRITEs succeed")
		}
		for call := range f.fail {
			f.failWith(call, 0)
		}
	})
	for _, m := range []*verbs.Memory{from, to} {
		if err := m.Free(); err != nil && (f.lost == 0 || !errors.Is(err, cuda.ErrDeviceLost)) {
			t.Errorf("Free = %v, want nil, or the loss of the GPU", err)
		}
	}
	if err := g.Close(); err != nil && f.lost == 0 {
		t.Errorf("Close = %v, want nil", err)
	}
	f.settled(t)
}

// BenchmarkGPUWrite compares WRITEs over the memory link with copies on a stream. Host memory is
// pinned. Requests are prepared once.
func BenchmarkGPUWrite(b *testing.B) {
	g := onGPU(b)
	const most = 64 << 20
	x, y := alloc(b, g, most), alloc(b, g, most)
	host, err := verbs.AllocMemory(most, nil)
	ok(b, err, "AllocMemory")
	pin, err := g.Pin(host)
	ok(b, err, "Pin")
	s, err := g.NewStream()
	ok(b, err, "NewStream")
	for _, v := range []struct {
		name     string
		from, to *verbs.Memory
		copy     func(off, n int) error
	}{
		{"device to device", x, y, func(off, n int) error { return s.Copy(y, off, x, off, n) }},
		{"host to device", host, x, func(off, n int) error { return s.Write(x, off, host.Bytes()[off:][:n]) }},
		{"device to host", x, host, func(off, n int) error { return s.Read(host.Bytes()[off:][:n], x, off) }},
	} {
		for _, c := range []struct{ count, size int }{{1, 4 << 10}, {1, 16 << 20}, {1000, 64 << 10}, {1, 1000 * (64 << 10)}} {
			name := fmt.Sprintf("%s/blocks=%d/size=%d", v.name, c.count, c.size)
			b.Run(name+"/copy", func(b *testing.B) {
				b.SetBytes(int64(c.count * c.size))
				for b.Loop() {
					for i := range c.count {
						ok(b, v.copy(i*c.size, c.size), "copy")
					}
					ok(b, s.Synchronize(), "Synchronize")
				}
			})
			b.Run(name+"/write", func(b *testing.B) {
				w, wrs := newWire(b, onMemoryLink(b), v.from, v.to), make([]verbs.SendWR, c.count)
				w.fill(wrs, c.size)
				b.SetBytes(int64(c.count * c.size))
				b.ReportAllocs()
				for b.Loop() {
					if s := w.post(b, wrs); s != verbs.StatusSuccess {
						b.Fatal(s)
					}
				}
			})
		}
	}
	ok(b, s.Close(), "Close")
	ok(b, pin.Close(), "Close")
	ok(b, host.Free(), "Free")
}
