package perf

import (
	"math"
	"slices"
	"time"
)

const (
	sampleBatch = 1 << 15
	sampleLimit = 1 << 21
)

// samples collects the times of a latency test. Adding is one store; flush does the arithmetic,
// outside of what is timed. Minimum, maximum, average and deviation are of all samples.
// Percentiles are exact for up to limit samples. Beyond that every second, fourth, ... sample is
// kept for them.
type samples struct {
	batch []time.Duration // Invariant: len < cap between calls
	kept  []time.Duration // for percentiles
	limit int             // how many are kept at most
	every int             // each every-th sample is kept
	skip  int             // samples to drop before the next is kept
	seen  int             // samples of the batch that recent has seen

	count    int64         // samples so far
	min, max time.Duration // of all samples
	mean     float64       // Welford's running mean, in nanoseconds
	m2       float64       // Welford's sum of squared deviations
}

func newSamples() *samples {
	return &samples{batch: make([]time.Duration, 0, sampleBatch), limit: sampleLimit, every: 1, min: math.MaxInt64}
}

// add takes a sample and reports whether flush must be called before the next.
func (s *samples) add(d time.Duration) (full bool) {
	s.batch = append(s.batch, d)
	return len(s.batch) == cap(s.batch)
}

// flush counts the samples of the batch.
func (s *samples) flush() {
	for _, d := range s.batch {
		s.count++
		s.min, s.max = min(s.min, d), max(s.max, d)
		delta := float64(d) - s.mean
		s.mean += delta / float64(s.count)
		s.m2 += delta * (float64(d) - s.mean)
		if s.skip > 0 {
			s.skip--
			continue
		}
		s.kept = append(s.kept, d)
		if len(s.kept) == s.limit {
			s.thin()
		}
		s.skip = s.every - 1
	}
	s.batch, s.seen = s.batch[:0], 0
}

// recent returns the median and the 99th percentile in microseconds of the samples since the last call, as far as
// they are not flushed. They are 0 if there are none.
func (s *samples) recent(scale float64) (p50, p99 float64) {
	fresh := slices.Clone(s.batch[s.seen:])
	s.seen = len(s.batch)
	if len(fresh) == 0 {
		return 0, 0
	}
	slices.Sort(fresh)
	us := func(ns float64) float64 { return round(ns*scale/1e3, 4) }
	return us(median(fresh)), us(float64(percentile(fresh, 99, 100)))
}

// thin keeps every second of the kept samples.
func (s *samples) thin() {
	for i := range s.kept[:len(s.kept)/2] {
		s.kept[i] = s.kept[2*i]
	}
	s.kept = s.kept[:len(s.kept)/2]
	s.every *= 2
}

// result returns what was measured; a time is scale times that of a sample. There must be at
// least one sample, and all must be flushed.
func (s *samples) result(scale float64) *LatencyResult {
	slices.Sort(s.kept)
	us := func(ns float64) float64 { return round(ns*scale/1e3, 4) }
	return &LatencyResult{
		Min:     us(float64(s.min)),
		Max:     us(float64(s.max)),
		Typical: us(median(s.kept)),
		Avg:     us(s.mean),
		Stdev:   us(math.Sqrt(s.m2 / float64(s.count))),
		P99:     us(float64(percentile(s.kept, 99, 100))),
		P999:    us(float64(percentile(s.kept, 999, 1000))),
	}
}

// number is a type that median works on.
type number interface{ ~int64 | ~float64 }

// median returns the middle of a sorted slice that is not empty, or the mean of the two in the
// middle.
func median[T number](sorted []T) float64 {
	n := len(sorted)
	return (float64(sorted[(n-1)/2]) + float64(sorted[n/2])) / 2
}

// percentile returns the smallest sample that num/den of all samples do not exceed
// (nearest rank). The slice is sorted and not empty.
func percentile[T number](sorted []T, num, den int) T {
	rank := (len(sorted)*num + den - 1) / den
	return sorted[max(rank, 1)-1]
}
