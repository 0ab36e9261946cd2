package metrics_test

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"ibverbx"
	"ibverbx/bootstrap"
	"ibverbx/internal/enginetest"
	"ibverbx/internal/enginetest/nodetest"
	"ibverbx/metrics"
	"ibverbx/node"
	"ibverbx/peer"
	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/stream"
	"ibverbx/verbs"
)

func TestMain(m *testing.M) { enginetest.Main(m) }

// scrape returns all values by name and labels, as in the text format: name{a="b"}.
func scrape(t *testing.T, c *metrics.Collector) map[string]float64 {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	enginetest.Must(t, r.Register(c))
	families, err := r.Gather()
	enginetest.Must(t, err)
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			got[f.GetName()+"{"+strings.Join(labels, ",")+"}"] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return got
}

// wantValues compares some values.
func wantValues(t *testing.T, got, want map[string]float64) {
	t.Helper()
	for _, k := range slices.Sorted(maps.Keys(want)) {
		if v, ok := got[k]; !ok || v != want[k] {
			t.Errorf("%s = %v (%v), want %v", k, v, ok, want[k])
		}
	}
}

const size = 1 << 20

// write writes 1 MiB from a to b.
func write(t *testing.T, a, b *enginetest.Host) {
	t.Helper()
	wr := ibverbx.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Remote: b.Region(size).Remote()}
	wr.SetSGE(a.Region(size).SGE(0, size))
	a.PostSend(wr)
	enginetest.Must(t, a.Wait(1)[0].Err())
}

// A scrape has what Stats has: of the VirtualQP, of each rail, and of each NIC.
func TestScrapeHasStats(t *testing.T) {
	a, b := enginetest.NewPair(t, enginetest.MemoryLinks(2), ibverbx.Config{Lanes: 4, FragmentSize: 64 << 10})
	c := metrics.NewCollector()
	remove := c.AddQP("b", a.QP, a.Rails.Configs())
	write(t, a, b)
	s, packets := a.QP.Stats(), uint64(0)
	for _, nic := range a.NICs { // they have the same name
		packets += nic.Stats().PacketsSent
	}
	rail := func(name string) string {
		return fmt.Sprintf(`ibverbx_rail_%s{device=%q,rail="1",session="b"}`, name, a.NICs[1].Name())
	}
	want := map[string]float64{
		`ibverbx_sessions{session="b"}`:                      1,
		`ibverbx_sessions_failed{session="b"}`:               0,
		`ibverbx_session_lanes{session="b"}`:                 float64(len(s.Lanes)),
		`ibverbx_session_lanes_out{session="b"}`:             0,
		`ibverbx_session_sends_posted_total{session="b"}`:    1,
		`ibverbx_session_sends_completed_total{session="b"}`: 1,
		rail("lanes_up"):        2,
		rail("sessions_down"):   0,
		rail("bytes_total"):     size / 2,
		rail("fragments_total"): float64(s.Rails[1].Fragments),
		fmt.Sprintf(`ibverbx_nic_sent_packets_total{device=%q}`, a.NICs[1].Name()):             float64(packets),
		fmt.Sprintf(`ibverbx_nic_drops_total{device=%q,reason="port_down"}`, a.NICs[1].Name()): 0,
	}
	wantValues(t, scrape(t, c), want)
	if packets == 0 || s.Rails[1].Fragments == 0 {
		t.Errorf("%d packets, and %d fragments on rail 1, want some", packets, s.Rails[1].Fragments)
	}
	remove()
	remove()
	after := scrape(t, c)
	wantValues(t, after, map[string]float64{rail("bytes_total"): size / 2})
	if _, ok := after[rail("lanes_up")]; ok {
		t.Errorf("a removed session has the gauge %s, want its counters only", rail("lanes_up"))
	}
}

// Counters of several VirtualQPs of one name, one after the other and at once, add up and never go back. A NIC
// that they share counts once.
func TestCountersNeverGoBack(t *testing.T) {
	links := enginetest.MemoryLinks(1)
	a, b := enginetest.NewRails(t, links), enginetest.NewRails(t, links)
	for _, h := range []*enginetest.Host{a, b} {
		h.NewCQ(ibverbx.CQConfig{Waker: verbs.NewWaker()})
	}
	c := metrics.NewCollector()
	bytes := fmt.Sprintf(`ibverbx_rail_bytes_total{device=%q,rail="0",session="b"}`, a.NICs[0].Name())
	packets := fmt.Sprintf(`ibverbx_nic_sent_packets_total{device=%q}`, a.NICs[0].Name())
	sent := func() float64 { return float64(a.NICs[0].Stats().PacketsSent) }
	missed := 0.0 // packets while the NIC was not added
	for i := range 4 {
		missed += sent() - scrape(t, c)[packets] - missed
		a.QP, b.QP = nil, nil
		enginetest.Connect(t, a.NewQP(ibverbx.Config{Lanes: 2}), b.NewQP(ibverbx.Config{Lanes: 2}))
		first := c.AddQP("b", a.QP, a.Rails.Configs())
		again := c.AddQP("b", a.QP, a.Rails.Configs())
		write(t, a, b)
		want := map[string]float64{bytes: float64((i + 1) * size), packets: sent() - missed}
		wantValues(t, scrape(t, c), want)
		first()
		wantValues(t, scrape(t, c), want)
		again()
		wantValues(t, scrape(t, c), want)
		enginetest.Must(t, a.QP.Close())
		wantValues(t, scrape(t, c), want)
	}
}

// A context of reliable reports its paths.
func TestScrapeHasPaths(t *testing.T) {
	links := enginetest.MemoryLinks(1)
	host := func() *enginetest.Host {
		h := enginetest.NewRailsOver(t, links, func(_ int, inner verbs.Context) verbs.Context {
			ctx, err := reliable.Wrap(inner, reliable.Config{})
			enginetest.Must(t, err)
			t.Cleanup(func() { enginetest.Must(t, ctx.Close()) })
			return ctx
		})
		h.NewCQ(ibverbx.CQConfig{Waker: verbs.NewWaker()})
		h.NewQP(ibverbx.Config{Lanes: 1})
		return h
	}
	a, b := host(), host()
	enginetest.Connect(t, a.QP, b.QP)
	c := metrics.NewCollector()
	defer c.AddQP("b", a.QP, a.Rails.Configs())()
	write(t, a, b)
	got := scrape(t, c)
	device := fmt.Sprintf(`{device=%q}`, a.NICs[0].Name())
	wantValues(t, got, map[string]float64{"ibverbx_paths_up" + device: 16, "ibverbx_paths_down" + device: 0})
	for _, name := range []string{"ibverbx_path_chunks_total", "ibverbx_path_rtt_median_seconds", "ibverbx_path_rtt_max_seconds", "ibverbx_nic_sent_packets_total"} {
		if got[name+device] <= 0 {
			t.Errorf("%s = %v, want more than 0", name+device, got[name+device])
		}
	}
}

// A Session also reports its connection, and a Listener its admitted peers.
func TestScrapeHasPeers(t *testing.T) {
	link := softnic.NewMemoryLink(nil)
	cfg := peer.Config{
		Auth: bootstrap.Config{Token: []byte("a token of thirty-two bytes: 1234")},
		Open: func() (peer.NICs, error) {
			nic, err := softnic.New(link, softnic.Config{})
			enginetest.Must(t, err)
			ctx, err := nic.Open()
			return peer.NICs{Rails: []ibverbx.RailConfig{{Context: ctx}}, Close: nic.Close}, err
		},
	}
	l, err := peer.Listen(t.Context(), "127.0.0.1:0", cfg)
	enginetest.Must(t, err)
	accepted := make(chan *peer.Session, 1)
	go func() {
		s, err := l.Accept(t.Context())
		if err != nil {
			t.Errorf("Accept: %v", err)
		}
		accepted <- s
	}()
	s, err := peer.Dial(t.Context(), l.Addr().String(), cfg)
	enginetest.Must(t, err)
	c := metrics.NewCollector()
	defer c.AddListener("main", l)()
	remove := c.AddSession("b", s)
	enginetest.Must(t, s.Send(t.Context(), []byte("hello")))
	wantValues(t, scrape(t, c), map[string]float64{
		`ibverbx_sessions{session="b"}`:                            1,
		`ibverbx_peer_connections{session="b"}`:                    1,
		`ibverbx_peer_messages_total{direction="out",session="b"}`: 1,
		`ibverbx_listener_half_open{listener="main"}`:              0,
	})
	remove()
	enginetest.Must(t, s.Close())
	if other := <-accepted; other != nil {
		enginetest.Must(t, other.Close())
	}
	enginetest.Must(t, l.Close())
}

// Sessions beyond the 256th name are reported as "other", so that the number of labels has a limit.
func TestNamesAreBounded(t *testing.T) {
	a, b := enginetest.NewPair(t, enginetest.MemoryLinks(1), ibverbx.Config{Lanes: 2})
	c := metrics.NewCollector()
	from, to := a.Region(8), b.Region(8).Remote()
	for i := range 300 {
		remove := c.AddQP(fmt.Sprintf("peer%d\xff", i), a.QP, nil)
		wr := ibverbx.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Remote: to}
		wr.SetSGE(from.SGE(0, 8))
		a.PostSend(wr)
		enginetest.Must(t, a.Wait(1)[0].Err())
		remove()
	}
	seen, total := 0, 0.0
	for k, v := range scrape(t, c) {
		if strings.HasPrefix(k, "ibverbx_session_sends_posted_total") {
			seen++
			total += v
		}
	}
	if seen != 257 || total != 300 {
		t.Errorf("%d sessions with %v requests, want 257 with 300", seen, total)
	}
}

// Scrapes from another goroutine while requests are posted and polled. The race detector judges it.
func TestScrapeWhileWriting(t *testing.T) {
	a, b := enginetest.NewPair(t, enginetest.MemoryLinks(2), ibverbx.Config{Lanes: 4})
	c := metrics.NewCollector()
	defer c.AddQP("b", a.QP, a.Rails.Configs())()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for before := 0.0; ; {
			now := scrape(t, c)[`ibverbx_session_sends_completed_total{session="b"}`]
			if now < before {
				t.Errorf("%v requests completed, after %v", now, before)
			}
			before = now
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	for range 50 {
		write(t, a, b)
	}
	close(stop)
	<-stopped
}

// A rail without a lane in service counts as down for the VirtualQPs with lanes on it. A rail
// without lanes is not down.
func TestScrapeHasLostRail(t *testing.T) {
	links := enginetest.MemoryLinks(3)
	control, other := ibverbx.ControlPair()
	a, b := enginetest.NewRails(t, links), enginetest.NewRails(t, links)
	for _, h := range []*enginetest.Host{a, b} {
		h.NewCQ(ibverbx.CQConfig{Waker: verbs.NewWaker()})
	}
	enginetest.Connect(t, a.NewQP(ibverbx.Config{Lanes: 2, Control: control}), b.NewQP(ibverbx.Config{Lanes: 2, Control: other}))
	c := metrics.NewCollector()
	c.AddQP("b", a.QP, nil)
	down := func() (total float64) {
		for name, v := range scrape(t, c) {
			if strings.HasPrefix(name, "ibverbx_rail_sessions_down{") {
				total += v
			}
		}
		return total
	}
	if n := down(); n != 0 {
		t.Errorf("%v rails are down, want none", n)
	}
	a.NICs[1].SetPort(false)
	for down() != 1 {
		_, err := a.CQ.Poll(make([]ibverbx.WC, 1))
		enginetest.Must(t, err)
		_, err = b.CQ.Poll(make([]ibverbx.WC, 1))
		enginetest.Must(t, err)
	}
}

// Streams are reported by the host of the peer, and count on when a Node is added again.
func TestScrapeHasStreams(t *testing.T) {
	link := softnic.NewMemoryLink(nil)
	start := func() *node.Node {
		return (&nodetest.Host{Links: []softnic.Link{link}}).Start(t, nil).Node
	}
	a, b := start(), start()
	l, err := stream.Listen(b, "test")
	enginetest.Must(t, err)
	c := metrics.NewCollector()
	remove := c.AddStreams(b)
	p, err := a.Peer(t.Context(), b.Addr().String())
	enginetest.Must(t, err)
	for i := range 2 {
		from, err := stream.Dial(t.Context(), p, "test")
		enginetest.Must(t, err)
		to, err := l.Accept()
		enginetest.Must(t, err)
		_, err = from.Write([]byte("hello"))
		enginetest.Must(t, err)
		_, err = io.ReadFull(to, make([]byte, 5))
		enginetest.Must(t, err)
		wantValues(t, scrape(t, c), map[string]float64{
			`ibverbx_streams{session="127.0.0.1"}`:                            1,
			`ibverbx_stream_bytes_total{direction="in",session="127.0.0.1"}`:  float64(5 * (i + 1)),
			`ibverbx_stream_bytes_total{direction="out",session="127.0.0.1"}`: 0,
			`ibverbx_stream_resets_total{session="127.0.0.1"}`:                0,
			`ibverbx_streams_opened_total{direction="in"}`:                    float64(i + 1),
			`ibverbx_streams_refused_total{}`:                                 0,
			`ibverbx_stream_memory_bytes{}`:                                   float64(stream.NodeStats(b).Memory),
		})
		enginetest.Must(t, from.Close())
		enginetest.Must(t, to.Close())
		for stream.NodeStats(b).Streams > 0 {
			time.Sleep(time.Millisecond)
		}
		remove()
		if _, ok := scrape(t, c)[`ibverbx_streams{session="127.0.0.1"}`]; ok {
			t.Error("a Node that was removed has streams, want its counters only")
		}
		remove = c.AddStreams(b)
	}
}

// TestZeroCollector: a zero Collector is empty, and components can be added to it after a scrape.
func TestZeroCollector(t *testing.T) {
	var c metrics.Collector
	if got := scrape(t, &c); got[`ibverbx_label_overflow{label="session"}`] != 0 {
		t.Errorf("a zero Collector: got %v, want no overflow", got)
	}
	c.AddListener("a", new(bootstrap.Listener))
	if got, ok := scrape(t, &c)[`ibverbx_listener_admitted_total{listener="a"}`]; !ok || got != 0 {
		t.Errorf("a listener: got %v and %v, want 0", got, ok)
	}
}
