//go:build !race

package node

import (
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"ibverbx/bootstrap"
	"ibverbx/internal/enginetest"
	"ibverbx/internal/service"
	"ibverbx/peer"
	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// crowd is one Node, and many others with a session to it, all in this process.
type crowd struct {
	one    *host
	others []*Node
}

// newCrowd starts the Nodes. The others share their NICs. wrap, if not nil, wraps the contexts of all NICs.
func newCrowd(tb testing.TB, count int, wrap func(verbs.Context) (verbs.Context, error), change func(*Config)) *crowd {
	tb.Helper()
	n := newNetwork(1)
	open := func() (nics peer.NICs, err error) {
		_, nics.Rails, nics.Close, err = enginetest.OpenNICs(n, softnic.Config{}, wrap)
		return nics, err
	}
	c := &crowd{one: n.start(tb, change, func(c *Config) { c.Open = open }), others: make([]*Node, count)}
	nics, err := open()
	if err != nil {
		tb.Fatalf("open: got %v, want no error", err)
	}
	tb.Cleanup(func() { _ = nics.Close() })
	for i := range c.others {
		cfg := Config{Auth: bootstrap.Config{InsecurePlaintextOnLoopback: true}, IdleAfter: -1, Shards: 1, cqDepth: 256}
		cfg.Open = func() (peer.NICs, error) { return peer.NICs{Rails: nics.Rails}, nil }
		if change(&cfg); cfg.Listen != "" {
			tb.Fatal("the others do not listen")
		}
		if c.others[i], err = New(tb.Context(), cfg); err != nil {
			tb.Fatalf("New: got %v, want no error", err)
		}
	}
	tb.Cleanup(func() {
		var all sync.WaitGroup
		for _, n := range c.others {
			all.Go(func() { _ = n.Close() })
		}
		all.Wait()
	})
	return c
}

// meet lets all others dial the one, 16 concurrently.
func (c *crowd) meet(tb testing.TB) {
	tb.Helper()
	var all sync.WaitGroup
	places := make(chan struct{}, 16)
	for _, n := range c.others {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			if _, err := n.Peer(tb.Context(), c.one.node.Addr().String()); err != nil {
				tb.Errorf("Peer: got %v, want no error", err)
			}
		})
	}
	all.Wait()
	eventually(tb, "all peers are ready", func() bool {
		s := c.one.node.Stats()
		return s.Ready+s.Parked == len(c.others)
	})
}

// resident returns the process's resident memory in bytes.
func resident(tb testing.TB) int {
	tb.Helper()
	runtime.GC()
	debug.FreeOSMemory()
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		tb.Skipf("no /proc: %v", err)
	}
	pages, err := strconv.Atoi(strings.Fields(string(b))[1])
	if err != nil {
		tb.Fatalf("/proc/self/statm: %v", err)
	}
	return pages * os.Getpagesize()
}

// TestThousandIdlePeers: a Node has 200 sessions with others in the same process, or 1,000 with
// IBVERBX_TEST_LONG=1. Each side of a session uses at most 200 KiB, so 1,000 peers fit in 200 MiB. All sessions
// work.
func TestThousandIdlePeers(t *testing.T) {
	const limit = 200 << 10
	count := 200
	if os.Getenv("IBVERBX_TEST_LONG") == "1" {
		count = 1000
	}
	c := newCrowd(t, count, nil, func(*Config) {})
	before := resident(t)
	c.meet(t)
	each := (resident(t) - before) / (2 * count) // both ends are in this process
	t.Logf("an end of an idle session takes %d KiB", each>>10)
	if each > limit {
		t.Errorf("an end of an idle session takes %d bytes, want at most %d", each, limit)
	}
	c.use(t)
}

// use runs an operation with every peer.
func (c *crowd) use(tb testing.TB) {
	tb.Helper()
	for _, p := range c.one.node.Peers() {
		j := &job{done: make(chan error, 1)}
		j.Op = service.Op{Blocks: []service.Block{{Opcode: verbs.OpRDMAWrite}}, Sink: j}
		c.one.do(p, j)
	}
	if s := c.one.node.Stats(); s.Ready != len(c.others) || s.Losses != 0 {
		tb.Errorf("Stats: got %+v, want %d peers", s, len(c.others))
	}
}

// TestHundredsOfPeersOnWrappedRails: a Node on a wrapped rail has 200 sessions, within the default
// limit of receive buffers, or 1,000 with IBVERBX_TEST_LONG=1, within twice as many. All sessions
// work. Each other Node has its own engine, so the resident memory bounds that of an idle peer.
func TestHundredsOfPeersOnWrappedRails(t *testing.T) {
	count, limit := 200, 0 // the default
	if os.Getenv("IBVERBX_TEST_LONG") == "1" {
		count, limit = 1000, 512<<20 // a session has three QPs
	}
	for _, carrier := range []verbs.QPType{verbs.UC, verbs.UD} {
		t.Run(carrier.String(), func(t *testing.T) {
			wrap := func(inner verbs.Context) (verbs.Context, error) {
				return reliable.Wrap(inner, reliable.Config{Carrier: carrier, ChunkBytes: 32 << 10, RecvBytes: limit})
			}
			c := newCrowd(t, count, wrap, func(*Config) {})
			before := resident(t)
			c.meet(t)
			t.Logf("an idle session over %v takes %d KiB at both ends", carrier, (resident(t)-before)/count>>10)
			c.use(t)
		})
	}
}

// BenchmarkIdlePeers measures the CPU share of 1,000 idle sessions, including keepalives, and the memory per session:
// ready, or parked. Both ends are in this process, so the results are halved. It needs IBVERBX_TEST_LONG=1 and -benchtime 1x.
func BenchmarkIdlePeers(b *testing.B) {
	if os.Getenv("IBVERBX_TEST_LONG") != "1" {
		b.Skip("it takes a minute: set IBVERBX_TEST_LONG=1")
	}
	b.Run("ready", func(b *testing.B) { benchIdle(b, false) })
	b.Run("parked", func(b *testing.B) { benchIdle(b, true) })
}

func benchIdle(b *testing.B, parked bool) {
	const count = 1000
	c := newCrowd(b, count, nil, func(c *Config) { c.IdleAfter = time.Hour }) // prevents 1,000 Nodes from checking for idle sessions
	before := resident(b)
	c.meet(b)
	if parked {
		for _, p := range c.one.node.Peers() {
			p.node.mu.Lock()
			p.seenActivity = p.queue.counts.activity.Load()
			p.current.park.Store(true)
			p.current.wake()
			p.node.mu.Unlock()
		}
		eventually(b, "all are parked", func() bool { return c.one.node.Stats().Parked == count })
	}
	var share float64
	for b.Loop() {
		from, began := cpu(b), time.Now()
		time.Sleep(15 * time.Second)
		share = 100 * (cpu(b) - from).Seconds() / time.Since(began).Seconds() / 2
	}
	b.ReportMetric(share, "%core")
	b.ReportMetric(float64(resident(b)-before)/(2*count)/1024, "KiB/end")
}

// cpu returns the processor time used by the process.
func cpu(tb testing.TB) time.Duration {
	tb.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		tb.Fatalf("Getrusage: %v", err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
