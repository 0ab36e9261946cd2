package measure

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"ibverbx/internal/enginetest"
	"ibverbx/internal/testslice"
	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// must fails the test on error.
var must = enginetest.Must

// TestAims checks that every scenario reaches its aims with the default seed of the tool. A slice has some
// of them (make scenarios runs them all). Under the race detector it runs a part of each.
func TestAims(t *testing.T) {
	all := Scenarios()
	for i, s := range all {
		if !testslice.Of(t).Has(i, len(all)) {
			continue
		}
		t.Run(s.Name, func(t *testing.T) {
			o := Options{Seed: 1}
			if raced {
				o.Bytes = 8 << 20
			}
			r, err := s.Run(o)
			must(t, err)
			t.Logf("goodput_ratio %.4f, p99.9 %.1f us, %+v", r.GoodputRatio, r.Latency.P999, r.Counters)
			if missed := r.Missed(); len(missed) > 0 && !raced {
				t.Fatalf("missed %q", missed)
			}
			if r.GoodputRatio <= 0 || r.GoodputRatio > 1 {
				t.Fatalf("goodput_ratio is %v, want a share", r.GoodputRatio)
			}
		})
	}
}

// TestSameSeed: equal seeds produce equal JSON, and different seeds different JSON.
func TestSameSeed(t *testing.T) {
	run := func(seed uint64) string {
		s, ok := Builtin("reliable-400g-loss-1")
		if !ok {
			t.Fatalf("there is no such scenario in %v", Scenarios())
		}
		r, err := s.Run(Options{Seed: seed, Bytes: 8 << 20})
		must(t, err)
		r.Seed = 0
		b, err := json.Marshal(r)
		must(t, err)
		return string(b)
	}
	first, second, other := run(3), run(3), run(4)
	if first != second {
		t.Errorf("seed 3 gave\n%s\nand then\n%s", first, second)
	}
	if first == other {
		t.Errorf("seeds 3 and 4 gave the same: %s", first)
	}
}

// pair returns a world of two hosts and a flow from one to the other.
func pair(t *testing.T, i softnic.Impairment, cfg *reliable.Config, fc flowConfig) (*world, *flow) {
	t.Helper()
	w, err := newWorld(worldConfig{Seed: 1, Impairment: i})
	must(t, err)
	t.Cleanup(func() { must(t, w.open.Close()) })
	f, err := w.addPair(cfg, fc)
	must(t, err)
	return w, f
}

// small returns a world with one wrapped flow of 1 MiB.
func small(t *testing.T, i softnic.Impairment) (*world, *flow) {
	t.Helper()
	return pair(t, i, fastReliable(), flowConfig{MessageBytes: 64 << 10, Depth: 4, Bytes: 1 << 20})
}

// TestWrongBytes changes a byte of a completed message, as a late write would. The run must fail.
func TestWrongBytes(t *testing.T) {
	for _, at := range []time.Duration{100 * time.Microsecond, 500 * time.Microsecond} {
		w, f := small(t, softnic.Impairment{Delay: fastDelay, Rate: fastRate})
		w.at(settle+at, func() error {
			f.to.mem.Bytes()[3<<16] ^= 1
			return nil
		})
		if err := w.run(); err == nil || !strings.Contains(err.Error(), "not those that were sent") {
			t.Fatalf("Run = %v after a wrong byte at %v, want an error that says so", err, at)
		}
	}
}

// TestDeadLink: a dead link returns an error instead of hanging.
func TestDeadLink(t *testing.T) {
	w, f := small(t, softnic.Impairment{Delay: fastDelay, Rate: fastRate})
	w.at(settle+20*time.Microsecond, func() error {
		w.link.Cut(f.from.host.nic, f.to.host.nic)
		return nil
	})
	if err := w.run(); err == nil || !strings.Contains(err.Error(), verbs.StatusRetryExcErr.String()) {
		t.Fatalf("Run = %v over a dead link, want %v", err, verbs.StatusRetryExcErr)
	}
}

// TestPaced posts a message every 50 us on a link that needs 21.4 us for one, then one every microsecond: 16
// messages, at most two outstanding. The latency counts from the due time.
func TestPaced(t *testing.T) {
	for _, c := range []struct {
		every     time.Duration
		low, high float64
	}{{50 * time.Microsecond, 21, 22}, {time.Microsecond, 60, 200}} {
		w, f := pair(t, softnic.Impairment{Delay: fastDelay, Rate: fastRate}, nil,
			flowConfig{MessageBytes: 64 << 10, Depth: 2, Bytes: 1 << 20, Every: c.every})
		must(t, w.run())
		if p50 := f.latency.quantiles().P50; p50 < c.low || p50 > c.high {
			t.Errorf("every %v: p50 is %.1f us, want %v to %v", c.every, p50, c.low, c.high)
		}
	}
}

func TestQuantiles(t *testing.T) {
	var l latencies
	if got := l.quantiles().P50; got != 0 {
		t.Errorf("the median of nothing is %v, want 0", got)
	}
	for i := range int64(1000) {
		l = append(l, 1000*(1000-i))
	}
	if got, want := l.quantiles(), (Quantiles{P50: 500, P99: 990, P999: 999}); got != want {
		t.Errorf("quantiles of 1 to 1000 us are %v, want %v", got, want)
	}
}

func TestMedian(t *testing.T) {
	var results []*Result
	for _, v := range []float64{0.5, 0.9, 0.7} {
		results = append(results, &Result{GoodputRatio: v, CostUS: new(float64), Aims: []Aim{{Figure: "goodput_ratio", AtLeast: 0.8}, {Figure: "cost_us", Below: 1}}})
	}
	m := median(results)
	if m.GoodputRatio != 0.7 || m.Seeds != 3 {
		t.Errorf("the median of three seeds is %v of %d, want 0.7 of 3", m.GoodputRatio, m.Seeds)
	}
	if missed := m.Missed(); len(missed) != 1 || !strings.Contains(missed[0], "0.7, want goodput_ratio at least 0.8") {
		t.Errorf("missed %q, want the goodput alone", missed)
	}
	if even := median(results[:2]); even.GoodputRatio != 0.7 || even.Aims[0].Reached {
		t.Errorf("the median of 0.5 and 0.9 is %v, reached %v; want 0.7 and no", even.GoodputRatio, even.Aims[0].Reached)
	}
}

// TestScenarios checks that names are unique, descriptions exist, and aims refer to known results.
func TestScenarios(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range Scenarios() {
		if seen[s.Name] || s.About == "" {
			t.Errorf("%q is there twice, or about nothing: %q", s.Name, s.About)
		}
		seen[s.Name] = true
		for _, a := range s.Aims {
			if (&Result{CostUS: new(float64), FirstRatio: new(float64), TotalRatio: new(float64)}).figureNamed(a.Figure) == nil {
				t.Errorf("%s has an aim for %q, which is no figure", s.Name, a.Figure)
			}
		}
	}
}

// TestNames checks the names of scenarios and of fields that other programs rely on.
func TestNames(t *testing.T) {
	for _, name := range []string{
		"reliable-400g-loss-0", "reliable-400g-loss-0.01", "reliable-400g-loss-0.1", "reliable-400g-loss-1",
		"reliable-400g-read-loss-0", "reliable-400g-read-loss-0.01", "reliable-400g-read-loss-0.1", "reliable-400g-read-loss-1", "reliable-path-dead-read",
		"rc-400g-loss-0", "rc-400g-loss-0.01", "rc-400g-loss-0.1", "rc-400g-loss-1", "reliable-path-dead", "rc-incast-15to1",
		"reliable-ud-400g-loss-0", "reliable-ud-400g-loss-1", "reliable-ud-400g-10us-loss-1", "reliable-incast-15to1-fixed", "reliable-incast-15to1-credits", "reliable-ecmp-collision", "single-ecmp-collision",
	} {
		if _, ok := Builtin(name); !ok {
			t.Errorf("there is no scenario %s", name)
		}
	}
	b, err := json.Marshal(Result{})
	must(t, err)
	for _, field := range []string{`"goodput_ratio":0`, `"latency_us":{"p50":0,"p99":0,"p999":0}`} {
		if !strings.Contains(string(b), field) {
			t.Errorf("a result has no %s: %s", field, b)
		}
	}
}

// TestRunSeedsStopped: a run that is stopped returns the medians of the seeds that are done.
func TestRunSeedsStopped(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := Scenario{Name: "stopped", run: func(o Options, r *Result) error {
		if r.GoodputGbps = float64(o.Seed); o.Seed == 3 {
			cancel()
		}
		return nil
	}}
	r, err := s.RunSeeds(ctx, Options{Seed: 1}, 9)
	if !errors.Is(err, context.Canceled) || r == nil || r.Seeds != 3 || r.GoodputGbps != 2 {
		t.Errorf("RunSeeds = %+v, %v, want the medians of three seeds and %v", r, err, context.Canceled)
	}
	if r, err := s.RunSeeds(ctx, Options{}, 9); r != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("RunSeeds = %+v, %v, want no result and %v", r, err, context.Canceled)
	}
}
