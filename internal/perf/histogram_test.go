package perf

import (
	"testing"
	"time"
)

// TestBuckets: buckets have no gaps, hold the times they begin with, and are at most an eighth wide.
func TestBuckets(t *testing.T) {
	for b := range bucketOf(1<<62) - 1 {
		from, to := bucketFrom(b), bucketFrom(b+1)
		if bucketOf(from) != b || bucketOf(to-1) != b || to <= from || from >= 8 && to-from > from/8 {
			t.Fatalf("bucket %d is from %d to %d, and holds %d and %d", b, from, to, bucketOf(from), bucketOf(to-1))
		}
	}
	if got := bucketOf(-1); got != 0 {
		t.Errorf("a time before 0 is in bucket %d, want 0", got)
	}
}

// TestHistogramOfThinned: samples that were thinned out are counted by those that were kept.
func TestHistogramOfThinned(t *testing.T) {
	s := newSamples()
	s.limit = 64
	for i := range 256 {
		if s.add(time.Duration(1000 + i)) {
			s.flush()
		}
	}
	s.flush()
	n := int64(0)
	for _, b := range s.histogram(0.5) {
		n += b.Count
		if b.From < 0.4 || b.To > 0.7 {
			t.Errorf("a bucket %+v, want half of 1 to 1.256 us", b)
		}
	}
	if n < 200 || n > 320 {
		t.Errorf("%d samples, want about 256", n)
	}
}

// TestRecentTimes: recent takes each sample once, in microseconds.
func TestRecentTimes(t *testing.T) {
	s := newSamples()
	want := func(p50, p99 float64) {
		t.Helper()
		if a, b := s.recent(0.5); a != p50 || b != p99 {
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
