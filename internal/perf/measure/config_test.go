package measure

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/verbs"
)

// configError is an invalid Config, with substrings of the expected error.
type configError struct {
	name string
	cfg  Config
	want []string
}

func TestConfigErrors(t *testing.T) {
	for _, tt := range []configError{
		{"op", Config{Op: "push"}, []string{`operation "push"`, "write, read, send or atomic"}},
		{"op with imm", Config{Op: WriteImm}, []string{`operation "writeimm"`, "write, read, send or atomic"}},
		{"mode", Config{Mode: "speed"}, []string{`mode "speed"`}},
		{"connection", Config{Connection: 9}, []string{"--connection", "RC, UC or UD"}},
		{"read on UC", Config{Op: Read, Connection: verbs.UC}, []string{"--connection UC", "UC has no read", "--connection RC"}},
		{"atomic on UD", Config{Op: Atomic, Connection: verbs.UD}, []string{"--connection UD", "UD has no atomic"}},
		{"write on UD", Config{Connection: verbs.UD}, []string{"UD has no write", "measure send"}},
		{"mtu", Config{MTU: 1500}, []string{"--mtu 1500", "256, 512, 1024, 2048 or 4096"}},
		{"mtu of port", Config{MTU: 4096}, []string{"--mtu 4096", "at most 2048"}},
		{"size", Config{Sizes: []int{-1}}, []string{"--size -1"}},
		{"size and all", Config{Sizes: []int{8}, All: true}, []string{"--all", "--size"}},
		{"size of atomic", Config{Op: Atomic, Sizes: []int{16}}, []string{"--size 16", "8 bytes"}},
		{"all of atomic", Config{Op: Atomic, All: true}, []string{"--all", "8 bytes"}},
		{"size on UD", Config{Op: Send, Connection: verbs.UD, Sizes: []int{2049}}, []string{"--size 2049", "2048", "--connection RC"}},
		{"size of device", Config{QPs: 1, Sizes: []int{1<<30 + 1}}, []string{"--size 1073741825", "1 GiB", "--lanes 2"}},
		{"size of send", Config{Op: Send, Sizes: []int{1<<30 + 1}}, []string{"--size 1073741825", "1 GiB"}},
		{"size of request", Config{Sizes: []int{1 << 32}}, []string{"--size 4294967296", "4294967295 B"}},
		{"iters", Config{Iterations: -5}, []string{"--iters -5"}},
		{"duration", Config{Duration: -time.Second}, []string{"--duration -1s"}},
		{"iters and duration", Config{Iterations: 5, Duration: time.Second}, []string{"--iters", "--duration", "drop one"}},
		{"qps of device", Config{Connection: verbs.UC, QPs: 5000}, []string{"--lanes 5000", "4096"}},
		{"depth", Config{TxDepth: -1}, []string{"--tx-depth -1"}},
		{"depth of device", Config{QPs: 1, TxDepth: 5000}, []string{"--tx-depth 5000", "4096"}},
		{"receives of device", Config{Op: Send, TxDepth: 4096}, []string{"--tx-depth 4096", "4160"}},
		{"depth of VirtualQP", Config{TxDepth: 70000}, []string{"--tx-depth 70000", "65536"}},
		{"cqe of device", Config{Connection: verbs.UC, QPs: 1024, TxDepth: 4096}, []string{"--lanes 1024", "--tx-depth"}},
		{"cq-mod", Config{CQMod: -1}, []string{"--cq-mod -1"}},
		{"cq-mod over depth", Config{CQMod: 9, TxDepth: 8}, []string{"--cq-mod 9", "--tx-depth"}},
		{"memory", Config{TxDepth: 64, Bidirectional: true, Check: true, Sizes: []int{3 << 30}}, []string{"--size", "MiB at one end, at most 4096"}},
		{"lat with UC QPs", Config{Mode: Latency, Connection: verbs.UC, QPs: 2}, []string{"--lanes 2", "--lat"}},
		{"lat with depth", Config{Mode: Latency, TxDepth: 8}, []string{"--tx-depth 8", "--lat"}},
		{"lat with cq-mod", Config{Mode: Latency, CQMod: 8}, []string{"--cq-mod 8", "--lat"}},
		{"lat both ways", Config{Mode: Latency, Bidirectional: true}, []string{"--bidirectional", "--lat"}},
	} {
		t.Run(tt.name, func(t *testing.T) { wantConfigError(t, &tt) })
	}
}

func TestVirtualConfigErrors(t *testing.T) {
	for _, tt := range []configError{
		{"no rails", Config{Rails: -1}, []string{"--rails -1", "1 to 8"}},
		{"too many rails", Config{Rails: 9}, []string{"--rails 9", "1 to 8"}},
		{"rails on UC", Config{Connection: verbs.UC, Rails: 2}, []string{"--rails 2", "RC QPs", "--connection RC"}},
		{"scheme", Config{Scheme: 3}, []string{"--scheme", "tally, dqplb or spray"}},
		{"scheme on UD", Config{Op: Send, Connection: verbs.UD, Scheme: ibverbx.Spray}, []string{"--scheme spray", "--connection RC"}},
		{"policy", Config{Policy: 3}, []string{"--policy", "auto, round-robin or two-choices"}},
		{"policy on UC", Config{Connection: verbs.UC, Policy: ibverbx.TwoChoices}, []string{"--policy two-choices", "--connection RC"}},
		{"imm of send", Config{Op: Send, Imm: true}, []string{"--imm", "WRITE_WITH_IMM", "send"}},
		{"imm on UC", Config{Connection: verbs.UC, Imm: true}, []string{"--imm", "--connection RC"}},
		{"fragment", Config{Fragment: 3 << 30}, []string{"--fragment 3221225472", "1 GiB", "0"}},
		{"negative fragment", Config{Fragment: -1}, []string{"--fragment -1"}},
		{"fragment of send", Config{Op: Send, Fragment: 4096}, []string{"--fragment 4096", "one lane"}},
		{"fragment on one lane", Config{QPs: 1, Fragment: 4096}, []string{"--fragment 4096", "--lanes 2"}},
		{"fragment on UC", Config{Connection: verbs.UC, Fragment: 4096}, []string{"--fragment 4096", "--connection RC"}},
		{"lanes", Config{QPs: -1}, []string{"--lanes -1", "lanes", "1 to 4094"}},
		{"too many lanes", Config{QPs: MaxLanes + 1}, []string{"--lanes 4095", "1 to 4094"}},
		{"too many QPs", Config{Connection: verbs.UC, QPs: maxQPs + 1}, []string{"--lanes 16385"}},
	} {
		t.Run(tt.name, func(t *testing.T) { wantConfigError(t, &tt) })
	}
}

func wantConfigError(t *testing.T, tt *configError) {
	t.Helper()
	a, b := newWire().pair(max(0, tt.cfg.withDefaults().Rails))
	_, err := New(a, b, tt.cfg)
	var bad *ConfigError
	if !errors.As(err, &bad) {
		t.Fatalf("New = %v, want a ConfigError", err)
	}
	for _, want := range tt.want {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not say %q", err, want)
		}
	}
}

// Config.Validate enforces the engine's limits. With an empty completion queue, the engine rejects
// a Config at the limit because of the queue, and one beyond it because of the limit.
func TestBoundsAreTheEngines(t *testing.T) {
	a, _ := newWire().pair(1)
	rails, err := ibverbx.NewRails(a...)
	enginetest.WantOK(t, "NewRails", err)
	cq, err := rails.NewCQ(ibverbx.CQConfig{Depth: 1})
	enginetest.WantOK(t, "NewCQ", err)
	for _, tt := range []struct {
		cfg  ibverbx.Config
		want string
	}{
		{ibverbx.Config{Lanes: MaxLanes}, "CQConfig.Depth"},
		{ibverbx.Config{Lanes: MaxLanes + 1}, "Config.Lanes"},
		{ibverbx.Config{SendDepth: MaxRequests}, "CQConfig.Depth"},
		{ibverbx.Config{SendDepth: MaxRequests + 1}, "Config.SendDepth"},
		{ibverbx.Config{FragmentSize: MaxFragment}, "CQConfig.Depth"},
		{ibverbx.Config{FragmentSize: MaxFragment + 1}, "Config.FragmentSize"},
	} {
		if _, err := cq.NewQP(tt.cfg); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("NewQP(%+v): got %v, want an error about %s", tt.cfg, err, tt.want)
		}
	}
}

func TestDefaults(t *testing.T) {
	for _, tt := range []struct {
		cfg          Config
		rails, lanes int
	}{
		{Config{}, 2, 8},
		{Config{Rails: 1}, 1, 4},
		{Config{Rails: 3}, 3, 12},
		{Config{QPs: 1}, 1, 1},
		{Config{QPs: 2}, 2, 2},
		{Config{QPs: 1, Rails: 2}, 2, 1},
		{Config{Mode: Latency}, 2, 8},
		{Config{Connection: verbs.UC}, 1, 1},
		{Config{Op: Send, Connection: verbs.UD, QPs: 4}, 1, 4},
	} {
		got, err := tt.cfg.Complete()
		if err != nil || got.Rails != tt.rails || got.QPs != tt.lanes {
			t.Errorf("Complete(%+v) has %d rails and %d lanes, error %v; want %d, %d and none", tt.cfg, got.Rails, got.QPs, err, tt.rails, tt.lanes)
		}
	}
}

func TestRailsMustMatch(t *testing.T) {
	a, b := newWire().pair(2)
	for _, n := range [][2]int{{1, 2}, {2, 1}, {1, 1}, {0, 0}} {
		if _, err := New(a[:n[0]], b[:n[1]], Config{Rails: 2}); err == nil || !strings.Contains(err.Error(), "want 2 at each end") {
			t.Errorf("New with %d and %d rails = %v, want an error that says 2", n[0], n[1], err)
		}
	}
}

func TestDeviceWithoutUC(t *testing.T) {
	w := newWire()
	w.attr = func(a *verbs.DeviceAttr) { a.Capabilities, a.Atomic = 0, verbs.AtomicNone }
	for _, cfg := range []Config{{Connection: verbs.UC}, {Op: Send, Connection: verbs.UD}, {Op: Atomic}} {
		a, b := w.pair(cfg.withDefaults().Rails)
		var bad *ConfigError
		if _, err := New(a, b, cfg); !errors.As(err, &bad) {
			t.Errorf("New(%s on %s) = %v, want a ConfigError", cfg.Op, cfg.Connection, err)
		}
	}
}

// The limits of the weakest device apply.
func TestDevicesDiffer(t *testing.T) {
	w := newWire()
	asked := 0
	w.attr = func(a *verbs.DeviceAttr) {
		if asked++; asked == 4 {
			a.MaxMsgSize, a.MaxQPRdAtomic = 1<<20, 3
		}
	}
	a, b := w.pair(2)
	_, err := New(a, b, Config{Op: Send, Sizes: []int{1<<20 + 1}})
	var bad *ConfigError
	if !errors.As(err, &bad) || !strings.Contains(err.Error(), "1 MiB") {
		t.Errorf("New = %v, want a ConfigError that says 1 MiB", err)
	}
	asked = 0
	test, err := New(a, b, Config{Op: Read})
	if err != nil || test.head.Table.OutstandingReads != 3 {
		t.Errorf("New has %d outstanding reads, error %v; want 3 and none", test.head.Table.OutstandingReads, err)
	}
}

func TestSweeps(t *testing.T) {
	for _, tt := range []struct {
		name        string
		cfg         Config
		first, last int
	}{
		{"default", Config{}, 8, 16 << 20},
		{"all", Config{All: true}, 2, 1 << 23},
		{"all on UD", Config{Op: Send, Connection: verbs.UD, All: true}, 2, 2048},
		{"all on UD with MTU", Config{Op: Send, Connection: verbs.UD, All: true, MTU: 512}, 2, 512},
		{"UD", Config{Op: Send, Connection: verbs.UD}, 8, 2048},
		{"atomic", Config{Op: Atomic}, 8, 8},
		{"latency", Config{Mode: Latency}, 8, 1 << 20},
		{"asked for", Config{Sizes: []int{3, 1}}, 3, 1},
		{"more than one device takes", Config{Sizes: []int{1<<30 + 1}}, 1<<30 + 1, 1<<30 + 1},
	} {
		if s := newTest(t, newWire(), tt.cfg).Sizes(); s[0] != tt.first || s[len(s)-1] != tt.last {
			t.Errorf("%s: sizes %v, want %d to %d", tt.name, s, tt.first, tt.last)
		}
	}
}

func TestPlanBounds(t *testing.T) {
	const maxWR = 4096
	for _, size := range []int{1, 64, 4096, 4097, 1 << 20, 16 << 20, 1 << 30} {
		for _, cfg := range []Config{
			{},
			{Check: true},
			{Op: Send},
			{Op: Send, Check: true},
			{TxDepth: 1},
			{TxDepth: 7, CQMod: 3},
			{CQMod: 100},
			{QPs: 1},
			{Imm: true},
			{Imm: true, QPs: 1},
			{Imm: true, QPs: 4000},
			{Imm: true, Fragment: 1},
			{Connection: verbs.UC, QPs: 3},
			{Mode: Latency, Op: Send, Check: true},
			{Mode: Latency, Imm: true, Check: true},
		} {
			c := cfg.withDefaults()
			p := newPlan(&c, size, maxWR)
			if p.chain < 1 || p.window < 1 || p.slots < 1 || p.stride < size || p.stride%cacheLine != 0 {
				t.Errorf("plan of %+v for %d is %+v, want all of it above 0 and whole cache lines", cfg, size, p)
			}
			if c.TxDepth > 0 && p.depth() > c.TxDepth {
				t.Errorf("plan of %+v for %d has a depth of %d, want at most %d", cfg, size, p.depth(), c.TxDepth)
			}
			if c.Check && p.slots*p.stride > max(checkBytes, p.stride) {
				t.Errorf("plan of %+v for %d has %d bytes in flight, want at most %d", cfg, size, p.slots*p.stride, checkBytes)
			}
			if c.op().received() && (p.recvs%p.chain != 0 || p.recvs < p.depth()) {
				t.Errorf("plan of %+v for %d has %d receives for a depth of %d", cfg, size, p.recvs, p.depth())
			}
			if p.laneDepth < 1 || p.laneDepth > maxWR || p.notifyDepth < 1 || p.notifyDepth > p.laneDepth {
				t.Errorf("plan of %+v for %d has lanes of %d and %d, want 1 to %d", cfg, size, p.laneDepth, p.notifyDepth, maxWR)
			}
		}
	}
}

func TestFormatSize(t *testing.T) {
	for n, want := range map[int]string{1: "1 B", 8: "8 B", 1500: "1500 B", 4096: "4 KiB", 64 << 10: "64 KiB", 16 << 20: "16 MiB", 1 << 30: "1 GiB", 1<<20 + 1024: "1025 KiB"} {
		if got := FormatSize(n); got != want {
			t.Errorf("FormatSize(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestPercentiles(t *testing.T) {
	s := newSamples(1)
	for i := 1000; i >= 1; i-- {
		if s.add(time.Duration(i) * time.Microsecond) {
			s.flush()
		}
	}
	s.flush()
	r := s.result()
	got := []float64{r.Min, r.Max, r.Avg, r.Stdev}
	if want := []float64{1, 1000, 500.5, 288.675}; !slices.Equal(got, want) {
		t.Errorf("min, max, avg, stdev = %v, want %v", got, want)
	}
	for name, got := range map[string][2]float64{"median": {r.Typical, 500}, "99 %": {r.P99, 990}, "99.9 %": {r.P999, 999}} {
		if math.Abs(got[0]-got[1]) > got[1]/1000 {
			t.Errorf("the %s is %v us, want %v with three digits", name, got[0], got[1])
		}
	}
	if s.count != 1000 {
		t.Errorf("%d iterations, want 1000", s.count)
	}
}

func TestPattern(t *testing.T) {
	for _, n := range []int{1, 7, 8, 9, 100, 4096} {
		b := make([]byte, n)
		fillPattern(b, 42)
		if _, _, ok := checkPattern(b, 42); !ok {
			t.Errorf("the pattern of %d bytes is not itself", n)
		}
		for _, at := range []int{0, n / 2, n - 1} {
			b[at] ^= 1
			if off, want, ok := checkPattern(b, 42); ok || off != at || want != b[at]^1 {
				t.Errorf("a wrong byte %d of %d was found at %d (%v)", at, n, off, ok)
			}
			b[at] ^= 1
		}
		if _, _, ok := checkPattern(b, 43); ok && n > 1 {
			t.Errorf("the pattern of %d bytes is the same for two seeds", n)
		}
	}
	if seed(0, 0, 1) == seed(0, 1, 0) || seed(0, 0, 1) == seed(1, 0, 1) {
		t.Error("seeds of different messages are the same")
	}
}
