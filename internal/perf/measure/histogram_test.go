package measure

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// TestBuckets: buckets do not overlap, hold their samples, and are at most a sixteenth wide.
func TestBuckets(t *testing.T) {
	s, sent := newSamples(1), int64(0)
	for d := time.Nanosecond; d < hdrLongest; d += d/9 + 1 {
		if sent++; s.add(d) {
			s.flush()
		}
		one := newSamples(1)
		one.add(d)
		one.flush()
		b, us := one.histogram(), float64(d)/1e3
		if len(b) != 1 || b[0].Count != 1 || us < b[0].From || us >= b[0].To || b[0].From >= 0.032 && b[0].To-b[0].From > b[0].From/15.99 {
			t.Fatalf("%v is in %+v, want a bucket at most a sixteenth wide", d, b)
		}
	}
	s.flush()
	last := 0.0
	for _, b := range s.histogram() {
		if b.From < last || b.To <= b.From || b.Count < 1 {
			t.Fatalf("bucket %+v behind one to %v, want it behind that, and with samples", b, last)
		}
		last, sent = b.To, sent-b.Count
	}
	if sent != 0 {
		t.Errorf("%d samples are missing in the buckets, want none", sent)
	}
}

// TestHistogramOfMany: percentiles have three digits. Histograms of two runs add up.
func TestHistogramOfMany(t *testing.T) {
	const count = 100_000
	run := func(from time.Duration) *samples {
		s := newSamples(0.5)
		for i := range time.Duration(count) {
			if s.add(from + i) {
				s.flush()
			}
		}
		s.flush()
		return s
	}
	s := run(100_000)
	if s.count != count {
		t.Errorf("%d samples, want %d", s.count, count)
	}
	n := int64(0)
	for _, b := range s.histogram() {
		n += b.Count
		if b.From < 49 || b.To > 115 {
			t.Errorf("a bucket %+v, want half of 100 to 200 us", b)
		}
	}
	if n != count {
		t.Errorf("the buckets have %d samples, want %d", n, count)
	}
	r := s.result()
	for name, got := range map[string][2]float64{"median": {r.Typical, 75}, "99 %": {r.P99, 99.5}, "99.9 %": {r.P999, 99.95}} {
		if math.Abs(got[0]-got[1]) > got[1]/1000 {
			t.Errorf("the %s is %v us, want %v with three digits", name, got[0], got[1])
		}
	}
	var sum *hdrhistogram.Histogram
	for _, s := range []*samples{s, run(200_000)} {
		text, err := s.encoded()
		if err != nil {
			t.Fatalf("encoded: got %v, want no error", err)
		}
		one, err := hdrhistogram.Decode([]byte(text))
		if err != nil {
			t.Fatalf("Decode: got %v, want no error", err)
		}
		if sum == nil {
			sum = one
		} else if dropped := sum.Merge(one); dropped != 0 {
			t.Errorf("Merge dropped %d samples", dropped)
		}
	}
	if n, median := sum.TotalCount(), float64(sum.ValueAtPercentile(50)); n != 2*count || math.Abs(median-100_000) > 100 {
		t.Errorf("two runs have %d samples with a median of %.0f ns, want %d and 100000", n, median, 2*count)
	}
}

// TestPercentilesOfManyInOrder: percentiles of a histogram lie between the shortest and the longest sample.
func TestPercentilesOfManyInOrder(t *testing.T) {
	for _, times := range [][]time.Duration{{1_000_001}, {1_000_001, 1_000_003}, {5, 3_333_333}, {2 * hdrLongest}} {
		for _, scale := range []float64{0.5, 1} {
			s := newSamples(scale)
			for range 1000 {
				for _, d := range times {
					s.add(d)
				}
			}
			s.flush()
			r := s.result()
			if order := []float64{r.Min, r.Typical, r.P99, r.P999, r.Max}; !slices.IsSorted(order) {
				t.Errorf("%v times %v: minimum, median, 99 %%, 99.9 %% and maximum are %v, want them in order", times, scale, order)
			}
		}
	}
}

// TestRecentTimes: recent returns each sample once, in microseconds.
func TestRecentTimes(t *testing.T) {
	s := newSamples(0.5)
	want := func(p50, p99 float64) {
		t.Helper()
		if a, b := s.recent(); a != p50 || b != p99 {
			t.Errorf("recent = %v, %v, want %v, %v", a, b, p50, p99)
		}
	}
	want(0, 0)
	for _, us := range []int{4, 2, 600} {
		s.add(time.Duration(us) * time.Microsecond)
	}
	want(2, 300)
	want(0, 0)
	s.flush()
	s.add(10 * time.Microsecond)
	want(5, 5)
}
