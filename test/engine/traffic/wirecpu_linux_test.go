package traffic_test

import (
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// wirePart and wireMessages limit the data that BenchmarkLanesCPU moves in one turn.
const (
	wirePart     = 64 << 20
	wireMessages = 30_000
)

// BenchmarkLanesCPU compares the CPU time of two ways to move the same messages over UDP on loopback,
// alternating between them. One goroutine polls both ends, so the time hardly depends on other load. The
// benchmark names show the two ways. An op is one turn of each; ratio is the median ratio of the second way's
// time to the first's.
func BenchmarkLanesCPU(b *testing.B) {
	one := wireConfig{rails: 1, lanes: 1}
	many := wireConfig{rails: 2, lanes: 8}
	notified := wireConfig{rails: 2, lanes: 8, op: verbs.OpRDMAWriteWithImm}
	uc := wireConfig{rails: 2, lanes: 8, uc: true}
	for _, c := range []struct {
		name      string
		way, with wireConfig
		sizes     []int
	}{
		{"lanes=8/with=oneQP", many, one, []int{8, 64 << 10, 1 << 20}},
		{"notified/with=plain", notified, many, []int{8}},
		{"uc/with=rc", uc, many, []int{64 << 10, 1 << 20}},
	} {
		for _, size := range c.sizes {
			b.Run(fmt.Sprintf("%s/size=%d", c.name, size), func(b *testing.B) {
				way, with := newWireWork(b, c.way, 1, size), newWireWork(b, c.with, 11, size)
				n := min(wireMessages, wirePart/size)
				way.move(n)
				with.move(n)
				var ratios, times []float64
				for b.Loop() {
					took := way.move(n)
					times = append(times, float64(took)/float64(n))
					ratios = append(ratios, float64(with.move(n))/float64(took))
				}
				slices.Sort(ratios)
				slices.Sort(times)
				b.ReportMetric(times[len(times)/2], "cpu-ns/msg")
				b.ReportMetric(ratios[len(ratios)/4], "ratio-q1")
				b.ReportMetric(ratios[len(ratios)/2], "ratio")
				b.ReportMetric(ratios[len(ratios)*3/4], "ratio-q3")
			})
		}
	}
}

// wireConfig is a VirtualQP over UDP.
type wireConfig struct {
	rails, lanes int
	// op is how messages are written. Zero is a plain WRITE.
	op verbs.Opcode
	// uc uses UC QPs as lanes, with reliability in software.
	uc bool
	// sealed seals all packets.
	sealed bool
}

// wireWork is two hosts on separate links, as in two processes, and a chain of requests from one to the
// other.
type wireWork struct {
	b        *testing.B
	from, to *enginetest.Host
	wrs      []ibverbx.SendWR
	// recvs are reposted when messages have arrived. Plain WRITEs do not need any.
	recvs []ibverbx.RecvWR
	// window is the number of chains in flight.
	window int
}

// newWireWork uses loopback addresses from 127.0.0.first on.
func newWireWork(b *testing.B, cfg wireConfig, first, size int) *wireWork {
	b.Helper()
	depth := max(4, min(128, 16<<20/size))
	w := &wireWork{b: b, wrs: make([]ibverbx.SendWR, min(64, max(1, 256<<10/size)))}
	w.window = depth / len(w.wrs)
	w.from, w.to = newWireHost(b, cfg, first, depth, true), newWireHost(b, cfg, first+cfg.rails, depth, false)
	enginetest.Connect(b, w.from.QP, w.to.QP)
	local, remote := w.from.Region(size), w.to.Region(size)
	for i := range w.wrs {
		w.wrs[i] = ibverbx.SendWR{Opcode: cfg.op, Remote: remote.Remote()}
		w.wrs[i].SetSGE(local.SGE(0, uint32(size)))
	}
	w.wrs[len(w.wrs)-1].Flags = verbs.SendSignaled
	if cfg.op == verbs.OpRDMAWriteWithImm {
		w.recvs = make([]ibverbx.RecvWR, 2*depth)
		w.to.PostRecv(w.recvs...)
	}
	return w
}

func newWireHost(b *testing.B, cfg wireConfig, first, depth int, dialer bool) *enginetest.Host {
	b.Helper()
	var path verbs.PathConfig
	if cfg.sealed {
		seal, err := softnic.NewSeal(make([]byte, 32), dialer)
		enginetest.Must(b, err)
		path.Seal = seal
	}
	var rails []ibverbx.RailConfig
	for rail := range cfg.rails {
		link, err := softnic.NewUDPLink(nil)
		enginetest.Must(b, err)
		nic, err := softnic.New(link, softnic.Config{Addr: netip.AddrFrom4([4]byte{127, 0, 0, byte(first + rail)})})
		enginetest.Must(b, err)
		b.Cleanup(func() { enginetest.Must(b, nic.Close()) })
		ctx, err := nic.Open()
		enginetest.Must(b, err)
		if cfg.uc {
			ctx, err = reliable.Wrap(ctx, reliable.Config{})
			enginetest.Must(b, err)
			b.Cleanup(func() { enginetest.Must(b, ctx.Close()) })
		}
		rails = append(rails, ibverbx.RailConfig{Context: ctx, Path: path})
	}
	h := enginetest.NewRailsOn(b, rails...)
	h.NewCQ(ibverbx.CQConfig{})
	h.NewQP(ibverbx.Config{Lanes: cfg.lanes, SendDepth: depth, RecvDepth: 2 * depth, LaneDepth: 2 * depth, NotifyDepth: 2 * depth})
	return h
}

// move moves n messages, or a few more to fill the last chain, and returns the CPU time of the process.
func (w *wireWork) move(n int) time.Duration {
	start := cpuTime(w.b)
	var wcs [64]ibverbx.WC
	chains := (n + len(w.wrs) - 1) / len(w.wrs)
	for posted, done := 0, 0; done < chains; {
		if posted < chains && posted-done < w.window {
			w.from.PostSend(w.wrs...)
			posted++
		}
		if k := len(pollGood(w.b, w.to, wcs[:])); len(w.recvs) > 0 {
			w.to.PostRecv(w.recvs[:k]...)
		}
		done += len(pollGood(w.b, w.from, wcs[:]))
	}
	return cpuTime(w.b) - start
}

// cpuTime is the time that the process has spent on processors.
func cpuTime(tb testing.TB) time.Duration {
	tb.Helper()
	var r syscall.Rusage
	enginetest.Must(tb, syscall.Getrusage(syscall.RUSAGE_SELF, &r))
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
