package measure_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/bootstrap"
	"ibverbx/internal/enginetest"
	"ibverbx/internal/perf/measure"
	"ibverbx/peer"
	"ibverbx/verbs"
)

// partner is one side of a connection, with preopened NICs.
type partner struct {
	conn   *bootstrap.Conn
	dialer bool
	nics   []ibverbx.RailConfig
	ahead  int            // argument of Waiting
	opened measure.Config // argument of Open
	spoil  bool           // the address of the remote side's memory is one message off
	// received, if not nil, changes a message from the remote side. An empty result drops it.
	received func(text string) string
	// connect, if not nil, is called before each row, with its number.
	connect func(ctx context.Context, row int) error
	rows    int // calls of Connect
}

func (p *partner) Send(ctx context.Context, b []byte) error {
	return p.conn.Send(ctx, bootstrap.KindApplication, b)
}

func (p *partner) Recv(ctx context.Context) ([]byte, error) {
	for {
		m, err := p.conn.Recv(ctx)
		if err != nil || p.received == nil {
			return m.Body, err
		}
		if text := p.received(string(m.Body)); text != "" {
			return []byte(text), nil
		}
	}
}

func (p *partner) Open(c *measure.Config) ([]ibverbx.RailConfig, error) {
	p.opened = *c
	return p.nics[:min(c.Rails, len(p.nics))], nil
}

func (p *partner) Waiting(ahead int) { p.ahead = ahead }

func (p *partner) Connect(ctx context.Context, cfg peer.Config) (*peer.Session, error) {
	p.rows++
	if p.connect != nil {
		if err := p.connect(ctx, p.rows-1); err != nil {
			return nil, err
		}
	}
	one, err := peer.Connect(ctx, p.conn, p.dialer, cfg)
	if err == nil && p.spoil {
		one.Remote("perf").Addr += 64
	}
	return one, err
}

// partners returns a client and a server in one process, with memory links between them.
func partners(t *testing.T, n int) [2]*partner {
	t.Helper()
	_, ends := enginetest.OpenEnds(t, enginetest.MemoryLinks(n))
	return partnersOn(t, ends)
}

// partnersOn returns a client and a server with these rails.
func partnersOn(t *testing.T, ends [2][]ibverbx.RailConfig) [2]*partner {
	t.Helper()
	door := bootstrap.Config{InsecurePlaintextOnLoopback: true}
	l, err := bootstrap.Listen(t.Context(), "127.0.0.1:0", door)
	enginetest.WantOK(t, "Listen", err)
	c, err := bootstrap.Dial(t.Context(), l.Addr().String(), door)
	enginetest.WantOK(t, "Dial", err)
	s, err := l.Accept(t.Context())
	enginetest.WantOK(t, "Accept", err)
	t.Cleanup(func() {
		if err := errors.Join(c.Close(), s.Close(), l.Close()); err != nil {
			t.Logf("close: %v", err)
		}
	})
	return [2]*partner{{conn: c, dialer: true, nics: ends[0]}, {conn: s, nics: ends[1]}}
}

// outcome is the result of one end of a test.
type outcome struct {
	report measure.Report
	err    error
}

// both runs a test at both ends. serve is the server's Config.
func both(ctx context.Context, ends [2]*partner, cfg, serve measure.Config) (client, server outcome) {
	return observed(ctx, ends, cfg, serve, measure.Observer{})
}

// observed is both with an Observer at the client.
func observed(ctx context.Context, ends [2]*partner, cfg, serve measure.Config, o measure.Observer) (client, server outcome) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		var r *measure.Test
		if r, server.err = measure.NewServer(context.WithoutCancel(ctx), ends[1], serve); server.err == nil {
			server.report, server.err = r.Run(context.WithoutCancel(ctx), measure.Observer{})
		}
		if server.err != nil {
			_ = ends[1].conn.Close()
		}
	}()
	var r *measure.Test
	if r, client.err = measure.NewClient(context.WithoutCancel(ctx), ends[0], cfg); client.err == nil {
		client.report, client.err = r.Run(ctx, o)
	}
	if client.err != nil {
		_ = ends[0].conn.Close()
	}
	<-done
	return client, server
}

func TestRemote(t *testing.T) {
	sizes := []int{8, 100000}
	for _, op := range []measure.Op{measure.Write, measure.Read, measure.Send, measure.Atomic, measure.WriteImm} {
		for _, mode := range []measure.Mode{measure.Bandwidth, measure.Latency} {
			for _, lanes := range []int{1, 4} {
				for _, more := range []string{"", "check", "bidirectional", "check bidirectional"} {
					if mode == measure.Latency && strings.Contains(more, "bidirectional") {
						continue
					}
					t.Run(fmt.Sprintf("%s/%s/lanes=%d/%s", op, mode, lanes, more), func(t *testing.T) {
						cfg := measure.Config{
							Op: op, Mode: mode, Rails: 2, QPs: lanes, Sizes: sizes, Iterations: 151,
							Check: strings.Contains(more, "check"), Bidirectional: strings.Contains(more, "bidirectional"),
						}
						if op == measure.WriteImm {
							cfg.Op, cfg.Imm = measure.Write, true
						}
						if op == measure.Atomic {
							cfg.Sizes = []int{8}
						}
						client, server := both(t.Context(), partners(t, 2), cfg, measure.Config{})
						if client.err != nil || server.err != nil {
							t.Fatalf("got %v and %v, want no errors", client.err, server.err)
						}
						checkRemote(t, &cfg, &client.report, &server.report)
					})
				}
			}
		}
	}
}

// checkRemote compares the reports of the two ends.
func checkRemote(t *testing.T, cfg *measure.Config, client, server *measure.Report) {
	t.Helper()
	if client.Role != "client" || server.Role != "server" || client.Device != server.Device || client.Peer != server.Peer {
		t.Errorf("the ends are %s %s to %s, and %s %s to %s", client.Role, client.Device, client.Peer, server.Role, server.Device, server.Peer)
	}
	if len(client.Results) != len(cfg.Sizes) || len(server.Results) != len(cfg.Sizes) {
		t.Fatalf("%d and %d results, want %d", len(client.Results), len(server.Results), len(cfg.Sizes))
	}
	want := int64(cfg.Iterations)
	if cfg.Bidirectional {
		want *= 2
	}
	bytes := uint64(0)
	for i := range client.Results {
		c, s := &client.Results[i], &server.Results[i]
		if c.Iterations != want || s.Iterations != want || c.Size != cfg.Sizes[i] {
			t.Errorf("row %d: %d and %d messages of %d bytes, want %d", i, c.Iterations, s.Iterations, c.Size, want)
		}
		bytes += uint64(want) * uint64(cfg.Sizes[i])
		switch {
		case cfg.Mode == measure.Latency:
			if c.LatencyResult == nil || s.LatencyResult == nil || *c.LatencyResult != *s.LatencyResult || c.Typical <= 0 {
				t.Errorf("row %d: latency %+v and %+v, want the same", i, c.LatencyResult, s.LatencyResult)
			}
		case *c.BandwidthResult != *s.BandwidthResult || c.BytesPerSecond <= 0:
			t.Errorf("row %d: bandwidth %+v and %+v, want the same", i, c.BandwidthResult, s.BandwidthResult)
		}
	}
	if cfg.Mode == measure.Latency {
		return // a ping-pong has a response for each
	}
	for name, rep := range map[string]*measure.Report{"client": client, "server": server} {
		carried := uint64(0)
		for _, rail := range rep.PerRail {
			carried += rail.Bytes
		}
		if rep.Op == measure.WriteImm && rep.Scheme == "tally" && rep.Lanes > 1 {
			continue // records have bytes too
		}
		if carried != bytes {
			t.Errorf("the rails of the %s carried %d bytes, want %d", name, carried, bytes)
		}
	}
}

// A row lasts for the requested duration, and both ends agree on the settings.
func TestRemoteSettled(t *testing.T) {
	cfg := measure.Config{Rails: 2, QPs: 8, Sizes: []int{1 << 20}, Duration: 50 * time.Millisecond, MTU: 2048, Scheme: ibverbx.DQPLB, Imm: true, Fragment: 64 << 10}
	client, server := both(t.Context(), partners(t, 2), cfg, measure.Config{QPs: 3, MTU: 1024, Fragment: 32 << 10})
	if client.err != nil || server.err != nil {
		t.Fatalf("got %v and %v, want no errors", client.err, server.err)
	}
	for _, r := range []measure.Report{client.report, server.report} {
		if r.Lanes != 3 || r.MTU != 1024 || r.Scheme != "dqplb" || r.Table.Fragment != 32<<10 || r.Results[0].Iterations == 0 {
			t.Errorf("%s: %d lanes, MTU %d, %s, fragments of %d, %d messages, want 3, 1024, dqplb, 32768 and some", r.Role, r.Lanes, r.MTU, r.Scheme, r.Table.Fragment, r.Results[0].Iterations)
		}
	}
}

// Wrong bytes are found at either end: the client uses an address that is one message off.
func TestRemoteCheckFinds(t *testing.T) {
	for _, op := range []measure.Op{measure.Write, measure.Read} {
		for _, mode := range []measure.Mode{measure.Bandwidth, measure.Latency} {
			ends := partners(t, 1)
			ends[0].spoil = true
			cfg := measure.Config{Op: op, Mode: mode, Rails: 1, QPs: 2, Sizes: []int{64}, Iterations: 64, Check: true}
			client, server := both(t.Context(), ends, cfg, measure.Config{})
			if client.err == nil || !strings.Contains(client.err.Error(), "--check") || server.err == nil {
				t.Errorf("%s %s: got %v and %v, want what --check found", op, mode, client.err, server.err)
			}
		}
	}
}

// With slots for only one burst, the next waits until the peer has compared it.
func TestRemoteCheckOneBurst(t *testing.T) {
	cfg := measure.Config{Rails: 1, QPs: 2, Sizes: []int{1 << 20}, Iterations: 100, TxDepth: 4, CQMod: 4, Check: true}
	client, server := both(t.Context(), partners(t, 1), cfg, measure.Config{})
	if client.err != nil || server.err != nil {
		t.Errorf("got %v and %v, want no errors", client.err, server.err)
	}
}

// If the client is interrupted, both ends stop, even if both send, and return partial reports.
func TestRemoteInterrupted(t *testing.T) {
	for name, cfg := range map[string]measure.Config{
		"bandwidth":    {},
		"both ways":    {Bidirectional: true},
		"both checked": {Bidirectional: true, Check: true},
		"both sends":   {Op: measure.Send, Bidirectional: true},
		"latency":      {Mode: measure.Latency},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		cfg.Rails, cfg.QPs, cfg.Sizes, cfg.Duration = 1, 2, []int{64, 128}, time.Hour
		client, server := observed(ctx, partners(t, 1), cfg, measure.Config{}, measure.Observer{Progress: func(p measure.Progress) {
			if p.Done > 0 {
				cancel()
			}
		}})
		cancel()
		for _, o := range []outcome{client, server} {
			if o.err != nil || !o.report.Interrupted || len(o.report.Results) != 1 || o.report.Results[0].Iterations == 0 {
				t.Errorf("%s: got %+v and %v, want one row, interrupted", name, o.report.Results, o.err)
			}
		}
	}
}

// An invalid test is refused, with the reason at both ends.
func TestRemoteRefused(t *testing.T) {
	var config *measure.ConfigError
	for name, cfg := range map[string]measure.Config{
		"--connection UD": {Op: measure.Send, Connection: verbs.UD},
		"--size":          {Sizes: []int{3 << 30}},
	} {
		_, err := measure.NewClient(t.Context(), partners(t, 1)[0], cfg)
		if !errors.As(err, &config) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v, want it refused", name, err)
		}
	}
	client, _ := both(t.Context(), partners(t, 1), measure.Config{Rails: 1, TxDepth: 70000}, measure.Config{})
	if !errors.As(client.err, &config) || !strings.Contains(client.err.Error(), "--tx-depth 70000") {
		t.Errorf("a sweep with a depth that no size allows: got %v, want it refused for its depth", client.err)
	}
	for text, want := range map[string]string{
		`{}`:                         "version",
		`not JSON`:                   "from the remote side",
		spec(`"version":1`):          "version 1",
		spec(`"sizes":[]`):           "sizes",
		spec(`"sizes":[4294967295]`): "--size",
		spec(`"rails":0`):            "leaves out",
		spec(`"op":"jump"`):          "no such operation",
		spec(`"duration_ns":-1`):     "leaves out",
		spec(`"lanes":5000`):         "--lanes 5000",
		strings.Replace(spec(""), `"imm"`, `"imm":1,"imm"`, 1): "from the remote side",
	} {
		ends := partners(t, 1)
		enginetest.WantOK(t, "Send", ends[0].Send(t.Context(), []byte(text)))
		if _, err := measure.NewServer(t.Context(), ends[1], measure.Config{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want it refused for %q", text, err, want)
		}
	}
}

// TestRemoteCheckedPingPong: a ping-pong of large checked messages fits in the server's memory.
func TestRemoteCheckedPingPong(t *testing.T) {
	for _, cfg := range []measure.Config{{Op: measure.Send}, {Imm: true}} {
		cfg.Mode, cfg.Check, cfg.Rails, cfg.QPs, cfg.Sizes, cfg.Iterations = measure.Latency, true, 1, 2, []int{3 << 20}, 30
		client, server := both(t.Context(), partners(t, 1), cfg, measure.Config{})
		if client.err != nil || server.err != nil {
			t.Errorf("%s: got %v and %v, want no errors", client.report.Op, client.err, server.err)
		}
	}
}

// TestRemoteKillRefused: a rail cannot be lost if the server's lanes leave none on it, or no other that takes over.
func TestRemoteKillRefused(t *testing.T) {
	for _, tt := range []struct {
		rail, rails, lanes int
		want               string
	}{{0, 2, 1, "2 rails, with lanes on 1"}, {1, 2, 1, "2 rails, with lanes on 1"}, {2, 3, 2, "3 rails, with lanes on 2"}} {
		cfg := measure.Config{Rails: tt.rails, QPs: 6, Sizes: []int{4096}, Kill: measure.Kill{On: true, Rail: tt.rail, At: time.Millisecond, Back: time.Millisecond}}
		client, _ := both(t.Context(), partners(t, tt.rails), cfg, measure.Config{QPs: tt.lanes})
		var config *measure.ConfigError
		if !errors.As(client.err, &config) || !strings.Contains(client.err.Error(), tt.want) {
			t.Errorf("rail %d of %d, %d lanes: got %v, want it refused with %q", tt.rail, tt.rails, tt.lanes, client.err, tt.want)
		}
	}
}

// TestRemoteWaits: a server may send its client one waiting message. A client may not send any.
func TestRemoteWaits(t *testing.T) {
	const note, host = `{"devices":[],"reads":0,"text":"","ahead":7}`, `{"devices":["mem"],"reads":1,"text":""}`
	for text, ok := range map[string]bool{host: true, note + "\n" + host: true, note + "\n" + note: false} {
		ends := partners(t, 1)
		for message := range strings.SplitSeq(text, "\n") {
			enginetest.WantOK(t, "Send", ends[1].Send(t.Context(), []byte(message)))
		}
		_, err := measure.NewClient(t.Context(), ends[0], measure.Config{Rails: 1})
		if (err == nil) != ok || (ends[0].ahead == 7) != strings.Contains(text, note) {
			t.Errorf("%s: got %v, behind %d clients, want success: %v", text, err, ends[0].ahead, ok)
		}
	}
	ends := partners(t, 1)
	enginetest.WantOK(t, "Send", ends[0].Send(t.Context(), []byte(strings.Replace(spec(""), host, note, 1))))
	if _, err := measure.NewServer(t.Context(), ends[1], measure.Config{}); err == nil || !strings.Contains(err.Error(), "description of its NICs is invalid") {
		t.Errorf("a client that tells the server to wait: got %v, want it refused", err)
	}
}

// TestRemoteLends: a client cannot make a server allocate more than its Config.Lend.
func TestRemoteLends(t *testing.T) {
	for _, tt := range []struct {
		lend int
		want string
	}{
		{0, "which lends 256"},
		{64 << 20, "which lends 64"},
		{1 << 30, ""},
	} {
		ends := partners(t, 1)
		enginetest.WantOK(t, "Send", ends[0].Send(t.Context(), []byte(spec(`"sizes":[64,536870912]`))))
		_, err := measure.NewServer(t.Context(), ends[1], measure.Config{Lend: tt.lend})
		var config *measure.ConfigError
		switch {
		case tt.want == "" && err != nil:
			t.Errorf("a server that lends %d bytes: got %v, want no error", tt.lend, err)
		case tt.want != "" && (!errors.As(err, &config) || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("a server that lends %d bytes: got %v, want it refused with %q", tt.lend, err, tt.want)
		}
	}
}

// TestErrorsStayOnOneLine: text of the remote side is escaped in the errors of both sides.
func TestErrorsStayOnOneLine(t *testing.T) {
	const text = `no\nINFO all is well\u001b[2J`
	errs := map[string]error{}
	for what, request := range map[string]string{
		"op": spec(`"op":"` + text + `"`), "mode": spec(`"mode":"` + text + `"`), "field": strings.Replace(spec(""), `"imm"`, `"`+text+`":1,"imm"`, 1),
	} {
		ends := partners(t, 1)
		enginetest.WantOK(t, "Send", ends[0].Send(t.Context(), []byte(request)))
		_, errs[what] = measure.NewServer(t.Context(), ends[1], measure.Config{})
	}
	ends := partners(t, 1)
	enginetest.WantOK(t, "Send", ends[1].Send(t.Context(), []byte(`{"devices":[],"reads":0,"text":"`+text+`"}`)))
	_, errs["refusal"] = measure.NewClient(t.Context(), ends[0], measure.Config{Rails: 1})
	for what, err := range errs {
		if err == nil || strings.ContainsAny(err.Error(), "\n\x1b") || !strings.Contains(err.Error(), `no\nINFO all is well\x1b[2J`) {
			t.Errorf("%s: got %q, want one line with the text escaped", what, err)
		}
	}
}

// spec returns a client's request with one field changed.
func spec(change string) string {
	s := `{"version":7,"op":"write","imm":false,"mode":"bandwidth","sizes":[64],"iterations":10,"duration_ns":0,"tx_depth":0,"cq_mod":0,` +
		`"bidirectional":false,"check":false,"rails":1,"lanes":1,"fragment":0,"host":{"devices":["mem"],"reads":1,"text":""}}`
	name, _, _ := strings.Cut(change, ":")
	if name == "" {
		return s
	}
	at := strings.Index(s, name)
	end := at + strings.IndexByte(s[at:], ',')
	if strings.HasPrefix(change, `"sizes"`) {
		end = at + strings.IndexByte(s[at:], ']') + 1
	}
	return s[:at] + change + s[end:]
}
