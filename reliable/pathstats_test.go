package reliable_test

import (
	"testing"
	"time"

	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// TestStatsFindBadPath moves data over separate routes. One route loses packets, is longer than the others,
// or becomes slow. PathInfo must single out the path on that route.
func TestStatsFindBadPath(t *testing.T) {
	for _, tt := range []struct {
		name  string
		bad   softnic.Path
		later bool // the route is good at first
		// value is the metric that the operator compares. It is at least twice as large for the bad path as
		// for any other.
		value func(*reliable.PathInfo) float64
	}{
		{"loss", softnic.Path{Loss: 0.01}, false, func(p *reliable.PathInfo) float64 { return float64(p.Lost) / float64(max(p.Sent, 1)) }},
		{"length", softnic.Path{Delay: 100 * time.Microsecond}, false, func(p *reliable.PathInfo) float64 { return float64(p.LeastRTT) }},
		{"queue", softnic.Path{Rate: 100e6, Queue: 1 << 30}, true, func(p *reliable.PathInfo) float64 { return float64(p.QueueDelay()) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			const bad, size = 5, 32 << 20
			s := newStar(t, softnic.Impairment{Delay: 5 * time.Microsecond, Rate: 12.5e9}, reliable.Config{WindowBytes: 256 << 10}, 1, 25e9, size)
			from := s.senders[0]
			way := aloneOnWay(t, s, bad)
			for round := range 2 {
				if tt.later == (round == 1) {
					must(t, s.link.SetPath(from.nic, s.to.nic, way, tt.bad))
				}
				s.write(t, 0, size)
				for _, wc := range s.until(t, s.now+int64(10*time.Second), 1) {
					must(t, wc.Err())
				}
			}
			infos := from.ctx.(reliable.PathLister).PathsOf(from.qp.Num())
			var sent, again uint64
			for i := range infos {
				p := &infos[i]
				sent, again = sent+p.Sent, again+p.Retransmitted
				t.Logf("path %d: sent %d, retransmitted %d, lost %d, RTT %d, least %d, queue %d",
					i, p.Sent, p.Retransmitted, p.Lost, p.RTT, p.LeastRTT, p.QueueDelay())
				if i != bad && tt.value(&infos[bad]) <= 2*tt.value(p) {
					t.Errorf("%v for path %d, %v for the bad path, want at least twice as much", tt.value(p), i, tt.value(&infos[bad]))
				}
			}
			if stats := from.qp.(reliable.StatsReader).Stats(); sent != stats.Chunks+stats.Retransmitted || again != stats.Retransmitted {
				t.Errorf("the paths have sent %d, %d of them again, but the connection %+v", sent, again, stats)
			}
			if p := &infos[0]; p.LeastRTT < 10_000 || p.LeastRTT > p.RTT {
				t.Errorf("path 0 has a round trip time of %d, at least %d, want 10000 or more", p.RTT, p.LeastRTT)
			}
			if got := from.ctx.(reliable.PathLister).PathsOf(0); got != nil {
				t.Errorf("PathsOf(0) = %v, want none: there is no such QP", got)
			}
		})
	}
}

// aloneOnWay increases the number of routes until path bad has one to itself, and returns that route. Flow
// labels are random, so with any fixed number two paths may share a route.
func aloneOnWay(t *testing.T, s *star, bad int) (way int) {
	t.Helper()
	from := s.senders[0]
	paths := from.qp.(reliable.StatsReader).Paths()
	for ways := 4096; ; ways++ {
		must(t, s.link.SetPaths(from.nic, s.to.nic, make([]softnic.Path, ways)...))
		way, shared := s.link.PathOf(from.nic, s.to.nic, 0, paths[bad].FlowLabel), 0
		for i := range paths {
			if s.link.PathOf(from.nic, s.to.nic, 0, paths[i].FlowLabel) == way {
				shared++
			}
		}
		if shared == 1 {
			return way
		}
	}
}

// TestStatsFromAnyGoroutine reads the counters while requests are posted and polled. The race detector
// judges it.
func TestStatsFromAnyGoroutine(t *testing.T) {
	const size = 256 << 10
	const chunk = 32 << 10
	a, b := newPair(t, softnic.NewMemoryLink(nil), reliable.Config{ChunkBytes: chunk}, size)
	last := func() (sent uint64) {
		for _, p := range a.ctx.(reliable.PathLister).PathsOf(a.qp.Num()) {
			sent += p.Sent
		}
		return sent
	}
	done := make(chan struct{})
	reader := make(chan struct{})
	go func() {
		defer close(reader)
		for before := uint64(0); ; {
			now := last()
			if now < before {
				t.Errorf("%d chunks sent, after %d", now, before)
			}
			before = now
			a.qp.(reliable.StatsReader).Stats()
			select {
			case <-done:
				return
			default:
			}
		}
	}()
	for range 50 {
		transfer(t, a, b, verbs.OpRDMAWrite, size)
	}
	close(done)
	<-reader
	if got := last(); got < 50*size/chunk {
		t.Errorf("%d chunks sent, want at least those of 50 messages", got)
	}
}

// TestContextStatsNeverGoBack: a context's counters sum over its connections, including closed ones.
func TestContextStatsNeverGoBack(t *testing.T) {
	const size = 256 << 10
	a, b := newPair(t, softnic.NewMemoryLink(nil), reliable.Config{}, size)
	of := a.ctx.(reliable.StatsReader)
	var before uint64
	for range 3 {
		transfer(t, a, b, verbs.OpRDMAWrite, size)
		own := a.qp.(reliable.StatsReader).Stats().Chunks
		if got := of.Stats().Chunks; own == 0 || got != before+own {
			t.Errorf("%d chunks of the context, want %d of closed QPs and %d of the open one", got, before, own)
		}
		if got, want := len(of.Paths()), len(a.qp.(reliable.StatsReader).Paths()); got != want {
			t.Errorf("%d paths of the context, want the %d of its QP", got, want)
		}
		before = of.Stats().Chunks
		must(t, a.qp.Close())
		must(t, b.qp.Close())
		if got := of.Stats().Chunks; got != before || len(of.Paths()) != 0 {
			t.Errorf("%d chunks and %d paths after the QP was closed, want %d and none", got, len(of.Paths()), before)
		}
		a.qp, b.qp = a.another(t), b.another(t)
		connect(t, a, b)
	}
}

// TestStatsMatchDrops: the data direction drops packets, and each chunk is one packet. The chunks counted as
// lost and as retransmitted are the packets that the link dropped, except for a few that were not chunks or
// arrived late.
func TestStatsMatchDrops(t *testing.T) {
	const size = 32 << 20
	delay := softnic.Impairment{Delay: 500 * time.Microsecond, Rate: 1e9}
	s := newStar(t, delay, reliable.Config{ChunkBytes: 4096}, 1, 25e9, size)
	from := s.senders[0]
	lossy := delay
	lossy.Loss = 0.01
	must(t, s.link.Impair(from.nic, s.to.nic, lossy))
	s.write(t, 0, size)
	for _, wc := range s.until(t, s.now+int64(10*time.Second), 1) {
		must(t, wc.Err())
	}
	var lost uint64
	for _, p := range from.ctx.(reliable.PathLister).PathsOf(from.qp.Num()) {
		lost += p.Lost
	}
	dropped, stats := s.link.Stats(from.nic, s.to.nic).Lost, from.qp.(reliable.StatsReader).Stats()
	near := func(n uint64) bool { return n <= dropped+dropped/10 && n+dropped/10 >= dropped }
	if all := stats.SamePathLoss + stats.ReorderLoss + stats.TimeoutLoss; !near(lost) || !near(stats.Retransmitted) || !near(all) {
		t.Errorf("the link dropped %d packets; %d chunks are lost on paths, %d in all, %d retransmitted: want 10 %% more or less at most",
			dropped, lost, all, stats.Retransmitted)
	}
}
