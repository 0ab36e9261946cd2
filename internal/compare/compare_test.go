package compare

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// TestMannWhitney checks probabilities from published tables, and both methods against each other.
func TestMannWhitney(t *testing.T) {
	for _, tt := range []struct {
		a, b []float64
		want float64
	}{
		{[]float64{1}, []float64{2}, 1},
		{[]float64{1, 2, 3}, []float64{4, 5, 6}, 0.1},                   // 2 of 20 orders
		{[]float64{1, 2, 3, 4}, []float64{5, 6, 7, 8}, 2.0 / 70},        // 2 of 70
		{[]float64{1, 2, 3, 5}, []float64{4, 6, 7, 8}, 4.0 / 70},        // U is 1
		{[]float64{1, 4, 5, 8}, []float64{2, 3, 6, 7}, 1},               // U is 8, the mean
		{[]float64{7, 7, 7, 7}, []float64{7, 7, 7, 7}, 1},               // only ties
		{[]float64{1, 2, 3, 4, 5}, []float64{6, 7, 8, 9, 10}, 2. / 252}, // 2 of 252
	} {
		if got := mannWhitney(tt.a, tt.b); math.Abs(got-tt.want) > 1e-9 {
			t.Errorf("mannWhitney(%v, %v) = %v, want %v", tt.a, tt.b, got, tt.want)
		}
		if there, back := mannWhitney(tt.a, tt.b), mannWhitney(tt.b, tt.a); math.Abs(there-back) > 1e-9 {
			t.Errorf("%v and %v: %v, and %v the other way round, want the same", tt.a, tt.b, there, back)
		}
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		a, b := make([]float64, 20), make([]float64, 25)
		for i := range a {
			a[i] = rng.NormFloat64()
		}
		for i := range b {
			b[i] = rng.NormFloat64() + 0.5
		}
		slices.Sort(a)
		slices.Sort(b)
		exact := mannWhitney(a, b)
		a[0] = a[1] // a tie: the approximation
		if near := mannWhitney(a, b); math.Abs(near-exact) > 0.03 {
			t.Errorf("the approximation is %v, want about %v", near, exact)
		}
	}
}

// TestChance: about one in twenty pairs of samples from one distribution differs significantly, not
// more.
func TestChance(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	significant := 0
	for range 1000 {
		a, b := make([]float64, 8), make([]float64, 8)
		for i := range a {
			a[i], b[i] = rng.ExpFloat64(), rng.ExpFloat64()
		}
		slices.Sort(a)
		slices.Sort(b)
		if mannWhitney(a, b) < alpha {
			significant++
		}
	}
	if significant < 20 || significant > 70 {
		t.Errorf("%d of 1000 differ, want about 50", significant)
	}
}

// TestInterval compares the bounds with tables of the binomial distribution.
func TestInterval(t *testing.T) {
	for n, k := range map[int]int{5: 0, 6: 1, 8: 1, 9: 2, 10: 2, 20: 6} {
		sorted := make([]float64, n)
		for i := range sorted {
			sorted[i] = float64(i + 1)
		}
		low, high, ok := interval(sorted)
		if ok != (k > 0) || ok && (low != float64(k) || high != float64(n+1-k)) {
			t.Errorf("interval of %d = %v, %v, %v, want values %d from each end", n, low, high, ok, k)
		}
	}
}

// TestIntervalOfManyValues: the bounds of a long test's spans are those of the normal approximation.
func TestIntervalOfManyValues(t *testing.T) {
	for _, n := range []int{1000, 1074, 1075, 3600, 100_000} {
		sorted := make([]float64, n)
		for i := range sorted {
			sorted[i] = float64(i + 1)
		}
		low, high, ok := interval(sorted)
		want := float64(n)/2 - 1.96*math.Sqrt(float64(n))/2
		if !ok || math.Abs(low-want) > 1 || low+high != float64(n+1) {
			t.Errorf("interval of %d = %v, %v, %v, want values %.1f from each end", n, low, high, ok, want)
		}
	}
}

// file returns a file of reports with these rates.
func file(t testing.TB, rates ...float64) string {
	t.Helper()
	var b strings.Builder
	for _, rate := range rates {
		fmt.Fprintf(&b, `{"op":"write","mode":"bandwidth","results":[{"size":64,"bytes_per_second":%v}]}`, rate)
	}
	return b.String()
}

func read(t *testing.T, text string) *Set {
	t.Helper()
	s := new(Set)
	if err := s.Read(strings.NewReader(text)); err != nil {
		t.Fatalf("Read: got %v, want no error", err)
	}
	return s
}

// TestSets: files with a clear difference differ, files with equal values do not.
func TestSets(t *testing.T) {
	old := read(t, file(t, 100, 101, 102, 103, 104, 105))
	list := Sets(old, read(t, file(t, 205, 203, 204, 202, 201, 200)))
	if len(list) != 1 || !list[0].Significant || !list[0].Enough || math.Abs(list[0].Change-0.9756) > 1e-4 || list[0].Old.Center != 102.5 {
		t.Errorf("Sets = %+v, want one difference of 97.56 %%", list)
	}
	if list := Sets(old, old); list[0].Significant || list[0].Change != 0 {
		t.Errorf("Sets = %+v, want no difference", list)
	}
	if list := Sets(old, read(t, file(t, 500))); list[0].Significant || list[0].Enough || list[0].New.Spread != nil {
		t.Errorf("Sets = %+v, want too few samples", list)
	}
}

// TestSpansAreSamples: a single report is sampled by its timeline.
func TestSpansAreSamples(t *testing.T) {
	var spans []string
	for i := range 7 {
		spans = append(spans, fmt.Sprintf(`{"bytes_per_second":%d}`, i))
	}
	s := read(t, `{"op":"write","mode":"bandwidth","results":[{"size":64,"bytes_per_second":9,"timeline":[`+strings.Join(spans, ",")+`]}]}`)
	if got := Sets(s, s)[0].Old; got.N != 6 || got.Center != 3.5 {
		t.Errorf("%+v, want the 6 spans after the first", got)
	}
}

// latencies returns a report with these times in microseconds and their histogram.
func latencies(t testing.TB, times ...int64) string {
	t.Helper()
	h := hdrhistogram.New(1, int64(time.Hour), 3)
	for _, us := range times {
		if err := h.RecordValue(us * 1000); err != nil {
			t.Fatalf("RecordValue: got %v, want no error", err)
		}
	}
	hdr, err := h.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	if err != nil {
		t.Fatalf("Encode: got %v, want no error", err)
	}
	at := func(percent float64) float64 { return float64(h.ValueAtPercentile(percent)) / 1e3 }
	return fmt.Sprintf(`{"op":"write","mode":"latency","results":[{"size":8,"t_typical_us":%v,"t_p99_us":%v,"t_p999_us":%v,"hdr":%q}]}`,
		at(50), at(99), at(99.9), hdr)
}

// TestHistogramsAddUp: percentiles cover all times in all files of a side, whether a file has one
// report or several. If a report lacks a histogram, the medians of the reports are used.
func TestHistogramsAddUp(t *testing.T) {
	fast := latencies(t, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10)
	slow := latencies(t, 500)
	old, now := new(Set), read(t, strings.Repeat(latencies(t, 20), 8))
	for _, text := range []string{fast + fast, fast + fast, fast + fast + fast, slow} {
		if err := old.Read(strings.NewReader(text)); err != nil {
			t.Fatalf("Read: got %v, want no error", err)
		}
	}
	list := Sets(old, now)
	if len(list) != 3 || list[0].Metric != Typical || list[1].Metric != P99 || list[2].Metric != P999 {
		t.Fatalf("Sets = %+v, want three percentiles", list)
	}
	for i, want := range []float64{10, 10, 500} { // 70 times of 10 us and one of 500
		if d := list[i]; math.Abs(d.Old.Center-want) > want/500 || d.Old.N != 8 || math.Abs(d.New.Center-20) > 0.1 {
			t.Errorf("%s is %v of %d reports and %v, want %v of 8 and 20", d.Metric, d.Old.Center, d.Old.N, d.New.Center, want)
		}
		if !list[i].Significant {
			t.Errorf("%s: the probability of chance is %v, want a difference: 7 of 8 reports have 10 us", list[i].Metric, list[i].P)
		}
	}
	bare := `{"op":"write","mode":"latency","results":[{"size":8,"t_p99_us":500}]}`
	if got := Sets(read(t, fast+fast+bare), now)[1].Old; got.N != 3 || math.Abs(got.Center-10) > 0.1 {
		t.Errorf("%+v, want the median of three reports", got)
	}
}

// FuzzRead: no file makes Read or Sets panic.
func FuzzRead(f *testing.F) {
	f.Add(file(f, 1, 2, 3))
	f.Add(latencies(f, 1, 2, 3) + latencies(f, 4))
	f.Fuzz(func(_ *testing.T, text string) {
		if s := new(Set); s.Read(strings.NewReader(text)) == nil {
			Sets(s, s)
		}
	})
}

func TestReadErrors(t *testing.T) {
	for text, want := range map[string]string{
		"":                     "no report",
		"{":                    "report 1",
		"{}":                   "no result of ibverbx perf --json",
		file(t, 1) + "trouble": "report 2",
		`{"op":"write","mode":"bandwidth","results":[]}`:                           "no result",
		`{"op":"write","mode":"latency","results":[{"size":8,"hdr":"HISTOGRAM"}]}`: "report 1: hdr of 8 bytes",
	} {
		if err := new(Set).Read(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Read(%q) = %v, want %q", text, err, want)
		}
	}
}
