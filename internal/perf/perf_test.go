package perf

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"ibverbx/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// run measures on a wire and checks that everything was closed.
func run(t *testing.T, w *wire, cfg Config) (Report, error) {
	t.Helper()
	a, b := w.pair()
	test, err := New(a, b, cfg)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	rep, err := test.Run(t.Context(), Observer{})
	if w.open != 0 {
		t.Errorf("%d objects were left open", w.open)
	}
	return rep, err
}

// variant is a test that every option has to get through.
type variant struct {
	name string
	cfg  Config
}

func variants() []variant {
	var vs []variant
	for _, op := range []Op{Write, Read, Send, Atomic} {
		for _, conn := range []verbs.QPType{verbs.RC, verbs.UC, verbs.UD} {
			for _, qps := range []int{1, 3} {
				for _, bidi := range []bool{false, true} {
					if !op.runsOn(conn) {
						continue
					}
					sizes := []int{1, 100, 1500}
					if op == Atomic {
						sizes = nil
					}
					cfg := Config{Op: op, Connection: conn, QPs: qps, Bidirectional: bidi, Sizes: sizes, Iterations: 333, TxDepth: 30, CQMod: 8}
					vs = append(vs, variant{fmt.Sprintf("%s/%s/qps=%d/bidi=%v", op, conn, qps, bidi), cfg})
				}
			}
		}
	}
	return vs
}

func TestBandwidth(t *testing.T) {
	for _, v := range variants() {
		for _, check := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/check=%v", v.name, check), func(t *testing.T) {
				cfg := v.cfg
				cfg.Check = check
				rep, err := run(t, newWire(), cfg)
				if err != nil {
					t.Fatal(err)
				}
				want := int64(cfg.Iterations * cfg.QPs)
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
			})
		}
	}
}

func TestLatency(t *testing.T) {
	for _, v := range variants() {
		if v.cfg.QPs > 1 || v.cfg.Bidirectional {
			continue
		}
		for _, check := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/check=%v", v.name, check), func(t *testing.T) {
				cfg := v.cfg
				cfg.Mode, cfg.TxDepth, cfg.CQMod, cfg.Check = Latency, 0, 0, check
				rep, err := run(t, newWire(), cfg)
				if err != nil {
					t.Fatal(err)
				}
				for _, r := range rep.Results {
					l := r.LatencyResult
					if r.Iterations != int64(cfg.Iterations) {
						t.Errorf("size %d: %d iterations, want %d", r.Size, r.Iterations, cfg.Iterations)
					}
					if order := []float64{l.Min, l.Typical, l.P99, l.P999, l.Max}; !slices.IsSorted(order) || l.Avg < l.Min || l.Avg > l.Max {
						t.Errorf("size %d: times do not make sense: %+v", r.Size, *l)
					}
				}
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

func TestCheckFindsCorruption(t *testing.T) {
	for _, mode := range []Mode{Bandwidth, Latency} {
		for _, op := range []Op{Write, Read, Send, Atomic} {
			t.Run(fmt.Sprintf("%s/%s", mode, op), func(t *testing.T) {
				w := newWire()
				offset := 77
				cfg := Config{Op: op, Mode: mode, Sizes: []int{100}, Iterations: 200, Check: true}
				if op == Atomic {
					cfg.Sizes, offset = nil, 0
				}
				const victim = 120
				w.after = func(message int, b []byte) {
					if message == victim {
						b[offset] ^= 0x10
					}
				}
				_, err := run(t, w, cfg)
				if op == Atomic {
					var bad *AtomicMismatchError
					if !errors.As(err, &bad) || bad.Got-bad.Want != 0x10 && bad.Want-bad.Got != 0x10 {
						t.Fatalf("error %v, want a counter that is off by 16", err)
					}
					return
				}
				var bad *MismatchError
				if !errors.As(err, &bad) || bad.Offset != offset || bad.Got != bad.Want^0x10 {
					t.Fatalf("error %v, want a mismatch at byte %d by bit 4", err, offset)
				}
				if want := fmt.Sprintf("byte %d on ", offset); !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			})
		}
	}
}

func TestCheckFindsMissingMessage(t *testing.T) {
	w := newWire()
	w.drop = func(message int) bool { return message == 50 }
	_, err := run(t, w, Config{Connection: verbs.UC, Sizes: []int{64}, Iterations: 100, Check: true})
	var bad *MismatchError
	if !errors.As(err, &bad) || bad.Message != 50 {
		t.Fatalf("error %v, want a mismatch of message 50", err)
	}
}

func TestFailedCompletionEndsRun(t *testing.T) {
	w := newWire()
	w.fail = 20
	rep, err := run(t, w, Config{Sizes: []int{8, 16}, Iterations: 10, TxDepth: 4})
	var bad *verbs.WCError
	if !errors.As(err, &bad) || bad.Status != verbs.StatusRemAccessErr {
		t.Fatalf("error %v, want a remote access error", err)
	}
	if !strings.Contains(err.Error(), "write bandwidth of ") {
		t.Errorf("error %q does not say what was measured", err)
	}
	if len(rep.Results) > 1 {
		t.Errorf("%d results, want only rows before the failure", len(rep.Results))
	}
}

func TestLostMessagesAreCounted(t *testing.T) {
	w := newWire()
	w.drop = func(message int) bool { return message%100 == 99 }
	rep, err := run(t, w, Config{Op: Send, Connection: verbs.UD, Sizes: []int{64}, Iterations: 500, TxDepth: 500})
	if err != nil {
		t.Fatal(err)
	}
	if r := rep.Results[0]; r.Lost == 0 || r.Iterations == 0 || r.Iterations >= 500 {
		t.Errorf("%d received and %d lost of 500", r.Iterations, r.Lost)
	}
}

func TestCancelKeepsResults(t *testing.T) {
	for _, mode := range []Mode{Bandwidth, Latency} {
		w := newWire()
		a, b := w.pair()
		test, err := New(a, b, Config{Mode: mode, Sizes: []int{8, 16, 32}, Iterations: 100})
		if err != nil {
			t.Fatal(err)
		}
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
			t.Errorf("%d objects were left open", w.open)
		}
	}
}

// A row that hangs must end soon after a cancellation, with what it has.
func TestCancelEndsHangingRow(t *testing.T) {
	for _, mode := range []Mode{Bandwidth, Latency} {
		w := newWire()
		w.hang = 200
		a, b := w.pair()
		test, err := New(a, b, Config{Mode: mode, Sizes: []int{8}, Duration: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(10*time.Millisecond, cancel)
		rep, err := test.Run(ctx, Observer{})
		if err != nil || !rep.Interrupted {
			t.Errorf("%s: interrupted %v, error %v", mode, rep.Interrupted, err)
		}
	}
}

func TestReportJSON(t *testing.T) {
	for _, tt := range []struct {
		mode Mode
		row  []string
	}{
		{Bandwidth, []string{"size", "iterations", "bytes_per_second", "messages_per_second", "copy_bytes_per_second", "ratio_to_copy"}},
		{Latency, []string{"size", "iterations", "t_min_us", "t_typical_us", "t_avg_us", "t_p99_us", "t_p999_us", "t_max_us"}},
	} {
		rep, err := run(t, newWire(), Config{Mode: tt.mode, Sizes: []int{8}, Iterations: 10})
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(rep)
		if err != nil {
			t.Fatal(err)
		}
		var got map[string]any
		if err := json.Unmarshal(text, &got); err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"op", "mode", "provider", "link", "qps", "results"} {
			if _, ok := got[key]; !ok {
				t.Errorf("%s: no %q in %s", tt.mode, key, text)
			}
		}
		row, _ := got["results"].([]any)[0].(map[string]any)
		for _, key := range tt.row {
			if _, ok := row[key]; !ok {
				t.Errorf("%s: no %q in %v", tt.mode, key, row)
			}
		}
	}
}

func TestBurstDoesNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	for _, op := range []Op{Write, Send} {
		a, b := newWire().pair()
		test, err := New(a, b, Config{Op: op, QPs: 2, Sizes: []int{8}})
		if err != nil {
			t.Fatal(err)
		}
		r, err := test.openRow(8, new(atomic.Bool), func(float64) {})
		if err != nil {
			t.Fatal(err)
		}
		var total bandwidth
		if n := testing.AllocsPerRun(10, func() {
			if err := r.burst(&total, 1000, 0); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations in a burst, want 0", op, n)
		}
		if err := r.pair.close(); err != nil {
			t.Error(err)
		}
	}
}
