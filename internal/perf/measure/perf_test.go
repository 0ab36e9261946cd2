package measure

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// run measures on a wire and checks that everything was closed.
func run(t *testing.T, w *wire, cfg Config) (Report, error) {
	t.Helper()
	rep, err := newTest(t, w, cfg).Run(t.Context(), Observer{})
	if w.open != 0 {
		t.Errorf("%d objects were left open, want 0", w.open)
	}
	return rep, err
}

func newTest(t *testing.T, w *wire, cfg Config) *Test {
	t.Helper()
	a, b := w.pair(cfg.withDefaults().Rails)
	test, err := New(a, b, cfg)
	enginetest.WantOK(t, "New", err)
	return test
}

// openRow opens one row of a test on a wire, and closes it after the test.
func openRow(t *testing.T, w *wire, cfg Config, size int) *SizeRun {
	t.Helper()
	r, err := newTest(t, w, cfg).openRow(t.Context(), size, &Observer{}, new(atomic.Bool))
	enginetest.WantOK(t, "openRow", err)
	t.Cleanup(func() { enginetest.WantOK(t, "close", r.closers.Close()) })
	return r
}

// variant is a test configuration that every option must support.
type variant struct {
	name string
	cfg  Config
}

// variants lists all operations over all shapes of a VirtualQP, and over UC and UD.
func variants() []variant {
	var vs []variant
	for _, op := range []Op{Write, WriteImm, Read, Send, Atomic} {
		cfg := Config{Op: op, Sizes: []int{1, 1500}, Iterations: 333, TxDepth: 30, CQMod: 8}
		if op == WriteImm {
			cfg.Op, cfg.Imm = Write, true
		}
		if op == Atomic {
			cfg.Sizes = nil
		}
		for _, conn := range []verbs.QPType{verbs.UC, verbs.UD} {
			for _, qps := range []int{1, 3} {
				if op.runsOn(conn) && !cfg.Imm {
					cfg := cfg
					cfg.Connection, cfg.QPs = conn, qps
					vs = append(vs, variant{fmt.Sprintf("%s/%s/qps=%d", op, conn, qps), cfg})
				}
			}
		}
		for _, scheme := range []ibverbx.Scheme{ibverbx.Tally, ibverbx.DQPLB, ibverbx.Spray} {
			for _, rails := range []int{1, 2} {
				for _, lanes := range []int{1, 5} {
					cfg := cfg
					cfg.Scheme, cfg.Rails, cfg.QPs = scheme, rails, lanes
					if lanes > 1 && (op == Write || op == WriteImm || op == Read) {
						cfg.Fragment, cfg.Policy = 400, ibverbx.RoundRobin // 1500 bytes are four fragments
					}
					vs = append(vs, variant{fmt.Sprintf("%s/%s/rails=%d/lanes=%d", op, scheme, rails, lanes), cfg})
				}
			}
		}
	}
	return vs
}

func TestBandwidth(t *testing.T) {
	for _, v := range variants() {
		// Check and Bidirectional are tested together to halve the number of runs.
		for _, check := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/check,bidi=%v", v.name, check), func(t *testing.T) {
				cfg := v.cfg
				cfg.Check, cfg.Bidirectional = check, check
				rep, err := run(t, newWire(), cfg)
				enginetest.WantOK(t, "Run", err)
				want := int64(cfg.Iterations)
				if cfg.Connection != 0 {
					want *= int64(cfg.QPs)
				}
				if cfg.Bidirectional {
					want *= 2
				}
				for _, r := range rep.Results {
					if r.Iterations != want || r.Lost != 0 {
						t.Errorf("size %d: %d iterations, %d lost, want %d and 0", r.Size, r.Iterations, r.Lost, want)
					}
					if r.BytesPerSecond <= 0 || r.PeakBytesPerSecond < r.BytesPerSecond || r.CopyBytesPerSecond <= 0 || r.RatioToCopy < 0 {
						t.Errorf("size %d: rates do not make sense: %+v", r.Size, *r.BandwidthResult)
					}
				}
				checkCarried(t, &cfg, &rep)
			})
		}
	}
}

func TestLatency(t *testing.T) {
	for _, v := range variants() {
		if v.cfg.QPs > 1 && v.cfg.Connection != 0 {
			continue
		}
		for _, check := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/check=%v", v.name, check), func(t *testing.T) {
				cfg := v.cfg
				cfg.Mode, cfg.TxDepth, cfg.CQMod, cfg.Check = Latency, 0, 0, check
				rep, err := run(t, newWire(), cfg)
				enginetest.WantOK(t, "Run", err)
				for _, r := range rep.Results {
					l := r.LatencyResult
					if r.Iterations != int64(cfg.Iterations) {
						t.Errorf("size %d: %d iterations, want %d", r.Size, r.Iterations, cfg.Iterations)
					}
					if order := []float64{l.Min, l.Typical, l.P99, l.P999, l.Max}; !slices.IsSorted(order) || l.Avg < l.Min || l.Avg > l.Max {
						t.Errorf("size %d: times do not make sense: %+v", r.Size, *l)
					}
				}
				checkCarried(t, &cfg, &rep)
			})
		}
	}
}

func TestDurationEndsRow(t *testing.T) {
	for _, mode := range []Mode{Bandwidth, Latency} {
		rep, err := run(t, newWire(), Config{Mode: mode, Sizes: []int{64}, Duration: 2 * time.Millisecond})
		if err != nil || len(rep.Results) != 1 || rep.Results[0].Iterations == 0 {
			t.Errorf("%s: %d results, error %v", mode, len(rep.Results), err)
		}
	}
}

// TestShortDurationEnds: a row completes even if its time is over before the first burst.
func TestShortDurationEnds(t *testing.T) {
	for _, check := range []bool{false, true} {
		if _, err := run(t, newWire(), Config{Sizes: []int{64}, Duration: time.Nanosecond, Check: check}); err != nil {
			t.Errorf("with Check %v: error %v, want none", check, err)
		}
	}
}

func TestCheckFindsCorruption(t *testing.T) {
	for _, mode := range []Mode{Bandwidth, Latency} {
		for _, op := range []Op{Write, WriteImm, Read, Send, Atomic} {
			for _, lanes := range []int{1, 4} {
				t.Run(fmt.Sprintf("%s/%s/lanes=%d", mode, op, lanes), func(t *testing.T) {
					w := newWire()
					offset := 77
					cfg := Config{Op: op, Mode: mode, QPs: lanes, Sizes: []int{100}, Iterations: 200, Check: true}
					switch op {
					case Atomic:
						cfg.Sizes, offset = nil, 0
					case WriteImm:
						cfg.Op, cfg.Imm = Write, true
					default:
					}
					const victim = 120
					w.after = func(message int, b []byte) {
						if message == victim {
							b[offset] ^= 0x10
						}
					}
					_, err := run(t, w, cfg)
					wantMismatch(t, op, offset, err)
				})
			}
		}
	}
}

// mismatch is the error of a wrong value.
type mismatch struct {
	op, what           string
	message, got, want uint64
}

// mismatchOf parses the error of a wrong value.
func mismatchOf(t *testing.T, err error) (m mismatch) {
	t.Helper()
	parts := regexp.MustCompile(`--check: (\w+) of .* on QP \d+, message (\d+): (.*) on \S+ is (0x[0-9a-f]+), want (0x[0-9a-f]+)$`).FindStringSubmatch(fmt.Sprint(err))
	if parts == nil {
		t.Fatalf("error %v, want a mismatch", err)
	}
	m.op, m.what = parts[1], parts[3]
	for to, text := range map[*uint64]string{&m.message: parts[2], &m.got: parts[4], &m.want: parts[5]} {
		n, err := strconv.ParseUint(text, 0, 64)
		enginetest.WantOK(t, "ParseUint", err)
		*to = n
	}
	return m
}

// wantMismatch checks the error of a test with bit 4 of a byte flipped.
func wantMismatch(t *testing.T, op Op, offset int, err error) {
	t.Helper()
	bad := mismatchOf(t, err)
	if op == Atomic {
		if bad.what != "the counter" || bad.got-bad.want != 0x10 && bad.want-bad.got != 0x10 {
			t.Fatalf("error %v, want a counter that is off by 16", err)
		}
		return
	}
	if bad.op != string(op) || bad.what != fmt.Sprintf("byte %d", offset) || bad.got != bad.want^0x10 {
		t.Fatalf("error %v, want a mismatch of %s at byte %d by bit 4", err, op, offset)
	}
}

// A wrong immediate is detected if the scheme carries it.
func TestCheckFindsWrongImmediate(t *testing.T) {
	for _, cfg := range []Config{{QPs: 1}, {QPs: 4, Scheme: ibverbx.Spray}} {
		cfg.Imm, cfg.Check, cfg.Sizes, cfg.Iterations = true, true, []int{100}, 200
		w := newWire()
		seen := 0
		w.imm = func(imm uint32) uint32 {
			if seen++; seen == 121 {
				return imm + 7
			}
			return imm
		}
		_, err := run(t, w, cfg)
		if bad := mismatchOf(t, err); bad.what != "the immediate" || bad.message != 120 || bad.got != 127 || bad.want != 120 {
			t.Errorf("%d lanes: error %v, want the immediate 127 of message 120", cfg.QPs, err)
		}
	}
}

func TestCheckFindsMissingMessage(t *testing.T) {
	w := newWire()
	w.drop = func(message int) bool { return message == 50 }
	_, err := run(t, w, Config{Connection: verbs.UC, Sizes: []int{64}, Iterations: 100, Check: true})
	if bad := mismatchOf(t, err); bad.message != 50 {
		t.Fatalf("error %v, want a mismatch of message 50", err)
	}
}

func TestFailedCompletionEndsRun(t *testing.T) {
	for _, tt := range []struct {
		cfg  Config
		want []string // substrings of the error
	}{
		{Config{QPs: 1}, []string{"lane 0 on rail 0 (fake0)", verbs.StatusRemAccessErr.String()}},
		{Config{QPs: 4}, []string{"on rail ", "(fake", verbs.StatusRemAccessErr.String()}},
		{Config{Connection: verbs.UC}, []string{verbs.StatusRemAccessErr.String()}},
	} {
		w := newWire()
		w.fail = 20
		tt.cfg.Sizes, tt.cfg.Iterations, tt.cfg.TxDepth = []int{8, 16}, 10, 4
		rep, err := run(t, w, tt.cfg)
		var bad *verbs.WCError
		if !errors.As(err, &bad) {
			t.Fatalf("%d lanes: error %v, want one of a completion", tt.cfg.QPs, err)
		}
		for _, want := range append(tt.want, "write bandwidth of ") {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%d lanes: error %q does not say %q", tt.cfg.QPs, err, want)
			}
		}
		if len(rep.Results) > 1 {
			t.Errorf("%d results, want only rows before the failure", len(rep.Results))
		}
	}
}

func TestLostMessagesAreCounted(t *testing.T) {
	w := newWire()
	w.drop = func(message int) bool { return message%100 == 99 }
	rep, err := run(t, w, Config{Op: Send, Connection: verbs.UD, Sizes: []int{64}, Iterations: 500, TxDepth: 500})
	enginetest.WantOK(t, "Run", err)
	if r := rep.Results[0]; r.Lost == 0 || r.Iterations == 0 || r.Iterations >= 500 {
		t.Errorf("%d received and %d lost of 500, want both above 0 and below 500", r.Iterations, r.Lost)
	}
}

func TestCancelKeepsResults(t *testing.T) {
	for _, mode := range []Mode{Bandwidth, Latency} {
		w := newWire()
		test := newTest(t, w, Config{Mode: mode, Sizes: []int{8, 16, 32}, Iterations: 1000})
		ctx, cancel := context.WithCancel(t.Context())
		rep, err := test.Run(ctx, Observer{Result: func(r Result) {
			if r.Size == 16 {
				cancel()
			}
		}})
		if err != nil || !rep.Interrupted || len(rep.Results) != 2 {
			t.Errorf("%s: %d results, interrupted %v, error %v; want 2, true, nil", mode, len(rep.Results), rep.Interrupted, err)
		}
		if w.open != 0 {
			t.Errorf("%d objects were left open, want 0", w.open)
		}
		checkCarried(t, &Config{Mode: mode}, &rep)
	}
}

// A hanging row returns a partial result soon after a cancellation.
func TestCancelEndsHangingRow(t *testing.T) {
	for _, mode := range []Mode{Bandwidth, Latency} {
		for _, lanes := range []int{1, 4} {
			w := newWire()
			w.hang = 200
			test := newTest(t, w, Config{Mode: mode, QPs: lanes, Sizes: []int{8}, Duration: time.Hour})
			ctx, cancel := context.WithCancel(t.Context())
			rep, err := test.Run(ctx, Observer{Progress: func(Progress) { time.AfterFunc(10*time.Millisecond, cancel) }})
			if err != nil || !rep.Interrupted {
				t.Errorf("%s on %d lanes: interrupted %v, error %v; want true and nil", mode, lanes, rep.Interrupted, err)
			}
			if w.open != 0 {
				t.Errorf("%d objects were left open, want 0", w.open)
			}
		}
	}
}

func TestBurstDoesNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	for _, cfg := range []Config{
		{QPs: 1},
		{QPs: 4},
		{QPs: 4, Imm: true},
		{QPs: 4, Imm: true, Scheme: ibverbx.DQPLB},
		{QPs: 4, Imm: true, Scheme: ibverbx.Spray},
		{QPs: 4, Op: Send},
		{QPs: 2, Op: Send, Connection: verbs.UD},
	} {
		r := openRow(t, newWire(), cfg, 8)
		var total tally
		if n := testing.AllocsPerRun(10, func() {
			enginetest.WantOK(t, "burst", r.burst(&total, 1000, 0))
		}); n != 0 {
			t.Errorf("%+v: %v allocations in a burst, want 0", cfg, n)
		}
	}
}

// TestOpened: the observer is called with both sides of every row, including their VirtualQPs if
// any, and again before they are closed.
func TestOpened(t *testing.T) {
	for _, conn := range []verbs.QPType{verbs.RC, verbs.UC} {
		w := newWire()
		cfg := Config{Connection: conn, Sizes: []int{8, 64}, Iterations: 10, Rails: 1}
		var sides []int
		closing := 0
		_, err := newTest(t, w, cfg).Run(t.Context(), Observer{Opened: func(side int, qp *ibverbx.VirtualQP, rails []ibverbx.RailConfig) func() {
			sides = append(sides, side)
			if (qp != nil) != (conn == verbs.RC) || len(rails) != 1 {
				t.Errorf("%s: VirtualQP %v and %d rails", conn, qp, len(rails))
			}
			return func() {
				closing++
				if w.open == 0 || qp != nil && len(qp.Stats().Lanes) == 0 {
					t.Errorf("%s: called after the half was closed", conn)
				}
			}
		}})
		if err != nil || !slices.Equal(sides, []int{0, 1, 0, 1}) || closing != 4 {
			t.Errorf("%s: got %v, the sides %v and %d calls before the end, want 0 1 0 1 and 4", conn, err, sides, closing)
		}
	}
}
