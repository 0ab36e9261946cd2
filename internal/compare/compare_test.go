package compare

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// TestMannWhitney checks probabilities of published tables, and the two ways of computing them against each other.
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
		{[]float64{7, 7, 7, 7}, []float64{7, 7, 7, 7}, 1},               // nothing but ties
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

// TestChance: of samples of one distribution, about one pair in twenty differs, and not more.
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

// TestInterval: the bounds are those of tables of the binomial distribution.
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

// file makes a file of reports with these rates.
func file(t *testing.T, rates ...float64) string {
	t.Helper()
	var b strings.Builder
	for _, rate := range rates {
		fmt.Fprintf(&b, `{"op":"write","mode":"bandwidth","results":[{"size":64,"bytes_per_second":%v}]}`, rate)
	}
	return b.String()
}

func read(t *testing.T, text string) *Set {
	t.Helper()
	s, err := Read(strings.NewReader(text))
	if err != nil {
		t.Fatalf("Read: got %v, want no error", err)
	}
	return s
}

// TestSets: files with a clear difference differ, and those with the same values do not.
func TestSets(t *testing.T) {
	old := read(t, file(t, 100, 101, 102, 103, 104, 105))
	list := Sets(old, read(t, file(t, 205, 203, 204, 202, 201, 200)))
	if len(list) != 1 || !list[0].Significant() || !list[0].Enough() || math.Abs(list[0].Change-0.9756) > 1e-4 || list[0].Old.Median != 102.5 {
		t.Errorf("Sets = %+v, want one difference of 97.56 %%", list)
	}
	if list := Sets(old, old); list[0].Significant() || list[0].Change != 0 {
		t.Errorf("Sets = %+v, want no difference", list)
	}
	if list := Sets(old, read(t, file(t, 500))); list[0].Significant() || list[0].Enough() || !math.IsInf(list[0].New.Spread, 1) {
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
	if got := Sets(s, s)[0].Old; got.N != 6 || got.Median != 3.5 {
		t.Errorf("%+v, want the 6 spans after the first", got)
	}
}

func TestReadErrors(t *testing.T) {
	for text, want := range map[string]string{
		"":                     "no report",
		"{":                    "report 1",
		"{}":                   "no result of ibverbx perf --json",
		file(t, 1) + "trouble": "report 2",
		`{"op":"write","mode":"bandwidth","results":[]}`: "no result",
	} {
		if _, err := Read(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Read(%q) = %v, want %q", text, err, want)
		}
	}
}
