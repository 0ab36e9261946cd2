package stream

import (
	"context"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/bootstrap"
	"ibverbx/internal/enginetest/nodetest"
	ibpeer "ibverbx/peer"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// TestNoAllocations: Read and Write do not allocate.
func TestNoAllocations(t *testing.T) {
	if testing.CoverMode() != "" || raceEnabled {
		t.Skip("instrumented code allocates")
	}
	for _, size := range []int{1, 4096, 200_000} {
		here, there := newPair(t, memoryNetwork(2), Config{}).dial(t)
		b := make([]byte, size)
		run := func() {
			if _, err := here.Write(b); err != nil {
				t.Fatalf("Write: got %v, want no error", err)
			}
			if _, err := io.ReadFull(there, b); err != nil {
				t.Fatalf("Read: got %v, want no error", err)
			}
		}
		for range 1000 {
			run()
		}
		if got := testing.AllocsPerRun(1000, run); got > 0 {
			t.Errorf("%v allocations for a Write and a Read of %d bytes, want none", got, size)
		}
	}
}

// rawPair is a VirtualQP between two sides without a Node, as a baseline for the benchmarks.
type rawPair struct{ here, there *ibpeer.Session }

const (
	rawSize = 16 << 20
	// benchBytes is the number of bytes copied per turn.
	benchBytes = 32 << 20
)

func rawConfig(n *network) ibpeer.Config {
	return ibpeer.Config{
		Auth: bootstrap.Config{InsecurePlaintextOnLoopback: true}, Open: (&nodetest.Host{Links: n.links}).Open, Fabric: ibpeer.Fabric{Unsealed: true},
		Regions: []ibpeer.RegionConfig{{Name: "raw", Size: rawSize}},
		Schemes: []ibverbx.Scheme{ibverbx.Tally}, QP: ibverbx.Config{Lanes: 2, SendDepth: 64, RecvDepth: 128, LaneDepth: 32},
	}
}

func newRaw(b *testing.B, n *network) *rawPair {
	b.Helper()
	l, err := ibpeer.Listen(soon(b), "127.0.0.1:0", rawConfig(n))
	wantOK(b, "Listen", err)
	defer l.Close()
	r := &rawPair{}
	done := make(chan error, 1)
	go func() {
		var err error
		r.there, err = l.Accept(soon(b))
		done <- err
	}()
	r.here, err = ibpeer.Dial(soon(b), l.Addr().String(), rawConfig(n))
	wantOK(b, "Dial", err)
	wantOK(b, "Accept", <-done)
	b.Cleanup(func() {
		wantOK(b, "Close", r.here.Close())
		wantOK(b, "Close", r.there.Close())
	})
	return r
}

// write writes count messages of 1 MiB, 8 at a time.
func (r *rawPair) write(b *testing.B, count int) {
	var wcs [64]ibverbx.WC
	for posted, ended := 0, 0; ended < count; {
		for posted < count && posted-ended < 8 {
			off := uint64(posted<<20) % rawSize
			wr := ibverbx.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Remote: r.here.Remote("raw"), RemoteOffset: off}
			wr.SetSGE(r.here.Local("raw").SGE(off, 1<<20))
			if _, err := r.here.QP.PostSend([]ibverbx.SendWR{wr}); err != nil {
				b.Fatalf("PostSend: got %v, want no error", err)
			}
			posted++
		}
		n, err := r.here.CQ.Poll(wcs[:])
		if err != nil {
			b.Fatalf("Poll: got %v, want no error", err)
		}
		ended += n
	}
}

// post sends a message of 64 bytes from one side, which expects another one.
func (r *rawPair) post(s *ibpeer.Session) error {
	if _, err := s.QP.PostRecv([]ibverbx.RecvWR{{WRID: 1}}); err != nil {
		return err
	}
	wr := ibverbx.SendWR{Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Remote: s.Remote("raw")}
	wr.SetSGE(s.Local("raw").SGE(0, 64))
	_, err := s.QP.PostSend([]ibverbx.SendWR{wr})
	return err
}

// await waits for a message.
func (r *rawPair) await(ctx context.Context, s *ibpeer.Session) error {
	var wcs [8]ibverbx.WC
	for {
		n, err := s.CQ.Wait(ctx, wcs[:])
		if err != nil {
			return err
		}
		for _, wc := range wcs[:n] {
			if wc.WRID == 1 {
				return nil
			}
		}
	}
}

// tcpPair returns the two ends of a TCP connection on loopback.
func tcpPair(b testing.TB) (here, there net.Conn) {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	wantOK(b, "Listen", err)
	defer func() { _ = l.Close() }()
	here, err = net.Dial("tcp", l.Addr().String())
	wantOK(b, "Dial", err)
	there, err = l.Accept()
	wantOK(b, "Accept", err)
	b.Cleanup(func() {
		_ = here.Close()
		_ = there.Close()
	})
	return here, there
}

// alternate runs a function alternately with others and reports its speed and its median speed relative to
// each. It returns the speed in bytes per second.
func alternate(b *testing.B, bytes int64, f func(), others map[string]func()) float64 {
	b.Helper()
	timed := func(f func()) time.Duration {
		begin := time.Now()
		f()
		return time.Since(begin)
	}
	f()
	for _, other := range others {
		other()
	}
	ratios := map[string][]float64{}
	var times []time.Duration
	b.ResetTimer()
	for b.Loop() {
		for name, other := range others {
			x, y := timed(f), timed(other)
			times = append(times, x)
			ratios[name] = append(ratios[name], float64(y)/float64(x))
		}
	}
	slices.Sort(times)
	mid := times[len(times)/2]
	if bytes > 0 {
		b.ReportMetric(float64(bytes)/mid.Seconds()/1e6, "MB/s")
	} else {
		b.ReportMetric(float64(mid.Nanoseconds())/pings, "ns/round-trip")
	}
	b.ReportMetric(0, "ns/op")
	for name, r := range ratios {
		slices.Sort(r)
		b.ReportMetric(r[len(r)/2], "x-"+name)
	}
	return float64(bytes) / mid.Seconds()
}

// benchLinks runs a benchmark on the links with published results.
func benchLinks(b *testing.B, f func(b *testing.B, n *network)) {
	for _, l := range []struct {
		name string
		n    func() *network
	}{{"memory", func() *network { return memoryNetwork(1) }}, {"udp", func() *network { return &network{} }}} {
		b.Run("link="+l.name, func(b *testing.B) { f(b, l.n()) })
	}
}

// BenchmarkStream copies through a stream, over UDP between two processes. x-raw is its speed relative to
// WRITEs on a VirtualQP, x-tcp relative to TCP on loopback, and x-tls relative to TLS.
func BenchmarkStream(b *testing.B) {
	b.Run("link=memory", func(b *testing.B) {
		n := memoryNetwork(1)
		here, there := newPair(b, n, Config{}).dial(b)
		r := newRaw(b, n)
		tcpHere, tcpThere := tcpPair(b)
		go count(there)
		go count(tcpThere)
		alternate(b, benchBytes, copies(b, here, nil), map[string]func(){
			"raw": func() { r.write(b, benchBytes>>20) }, "tcp": copies(b, tcpHere, nil),
		})
	})
	b.Run("link=udp", benchUDP)
	b.Run("link=udp/sealed", benchSealed)
}

const pings = 500

// pingPong returns a function that sends 64 bytes back and forth.
func pingPong(b *testing.B, here, there net.Conn) func() {
	go func() {
		buf := make([]byte, 64)
		for {
			if _, err := io.ReadFull(there, buf); err != nil {
				return
			}
			if _, err := there.Write(buf); err != nil {
				return
			}
		}
	}()
	buf := make([]byte, 64)
	return func() {
		for range pings {
			if _, err := here.Write(buf); err != nil {
				b.Fatalf("Write: got %v, want no error", err)
			}
			if _, err := io.ReadFull(here, buf); err != nil {
				b.Fatalf("Read: got %v, want no error", err)
			}
		}
	}
}

// BenchmarkStreamPingPong sends 64 bytes back and forth. x-raw is relative to a VirtualQP whose two ends wait
// for completions.
func BenchmarkStreamPingPong(b *testing.B) {
	benchLinks(b, func(b *testing.B, n *network) {
		here, there := newPair(b, n, Config{}).dial(b)
		tcpHere, tcpThere := tcpPair(b)
		r := newRaw(b, n)
		ctx := context.Background()
		raw := func() {
			done := make(chan error, 1)
			go func() {
				for range pings {
					if err := r.await(ctx, r.there); err != nil {
						done <- err
						return
					}
					if err := r.post(r.there); err != nil {
						done <- err
						return
					}
				}
				done <- nil
			}()
			for range pings {
				wantOK(b, "post", r.post(r.here))
				wantOK(b, "await", r.await(ctx, r.here))
			}
			wantOK(b, "the other side", <-done)
		}
		_, err := r.there.QP.PostRecv([]ibverbx.RecvWR{{WRID: 1}})
		wantOK(b, "PostRecv", err)
		alternate(b, 0, pingPong(b, here, there), map[string]func(){"raw": raw, "tcp": pingPong(b, tcpHere, tcpThere)})
	})
}

// BenchmarkStreamUnequalRails copies over two rails, one with a tenth of the other's speed. x-alone is
// relative to a stream over the fast rail alone, and x-fast to that rail's speed, which TCP cannot exceed.
// The rails are slow enough that machine load hardly matters.
func BenchmarkStreamUnequalRails(b *testing.B) {
	const fast = 25e6 // bytes per second
	run := func(rates ...float64) func() {
		n := &network{}
		for _, rate := range rates {
			n.links = append(n.links, faultNetwork(b, 1, softnic.Impairment{Rate: rate}).links...)
		}
		here, there := newPair(b, n, Config{}).dial(b)
		go count(there)
		return copies(b, here, nil)
	}
	rate := alternate(b, benchBytes, run(fast, fast/10), map[string]func(){"alone": run(fast)})
	b.ReportMetric(rate/fast, "x-fast")
}
