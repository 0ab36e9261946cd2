package measure

import (
	"math"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

const (
	sampleBatch = 1 << 15
	sampleLimit = 1 << 21

	// hdrDigits is how many digits of a time the histogram keeps, and hdrLongest the longest time.
	hdrDigits  = 3
	hdrLongest = time.Hour
)

// samples collects the times of a latency test. Adding is one store; flush does the arithmetic,
// outside of what is timed. Minimum, maximum, average and deviation are of all samples.
// Percentiles are exact for up to limit samples. Beyond that they come from the histogram, which has
// all samples with three digits, and lie between minimum and maximum.
type samples struct {
	scale float64                 // a time of the result is scale times that of a sample
	batch []time.Duration         // Invariant: len < cap between calls
	kept  []time.Duration         // all samples, for percentiles; nil if there are more than limit
	limit int                     // how many are kept at most
	seen  int                     // samples of the batch that recent has seen
	hdr   *hdrhistogram.Histogram // scaled samples in nanoseconds

	count    int64         // samples so far
	min, max time.Duration // of all samples
	mean     float64       // Welford's running mean, in nanoseconds
	m2       float64       // Welford's sum of squared deviations
}

func newSamples(scale float64) *samples {
	return &samples{
		scale: scale, batch: make([]time.Duration, 0, sampleBatch), limit: sampleLimit, min: math.MaxInt64,
		hdr: hdrhistogram.New(1, int64(hdrLongest), hdrDigits),
	}
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
		// The only error is a time beyond the longest.
		_ = s.hdr.RecordValue(min(int64(math.Round(float64(d)*s.scale)), int64(hdrLongest)))
		if s.count <= int64(s.limit) {
			s.kept = append(s.kept, d)
		} else {
			s.kept = nil
		}
	}
	s.batch, s.seen = s.batch[:0], 0
}

// recent returns the median and the 99th percentile in microseconds of the samples since the last call, as far as
// they are not flushed. They are 0 if there are none.
func (s *samples) recent() (p50, p99 float64) {
	fresh := slices.Clone(s.batch[s.seen:])
	s.seen = len(s.batch)
	return quantiles(fresh, s.scale)
}

// quantiles sorts times and returns the median and the 99th percentile in microseconds, scaled, or 0 without any.
func quantiles(times []time.Duration, scale float64) (p50, p99 float64) {
	if len(times) == 0 {
		return 0, 0
	}
	slices.Sort(times)
	us := func(ns float64) float64 { return round(ns*scale/1e3, 4) }
	return us(median(times)), us(float64(percentile(times, 99, 100)))
}

// result returns what was measured. There must be at least one sample, and all must be flushed.
func (s *samples) result() *LatencyResult {
	us := func(ns float64) float64 { return round(ns*s.scale/1e3, 4) }
	r := &LatencyResult{Min: us(float64(s.min)), Max: us(float64(s.max)), Avg: us(s.mean), Stdev: us(math.Sqrt(s.m2 / float64(s.count)))}
	if s.kept == nil {
		// The histogram returns the end of a class, which may lie beyond the longest sample.
		at := func(percent float64) float64 {
			return min(max(round(float64(s.hdr.ValueAtPercentile(percent))/1e3, 4), r.Min), r.Max)
		}
		r.Typical, r.P99, r.P999 = at(50), at(99), at(99.9)
		return r
	}
	slices.Sort(s.kept)
	r.Typical, r.P99, r.P999 = us(median(s.kept)), us(float64(percentile(s.kept, 99, 100))), us(float64(percentile(s.kept, 999, 1000)))
	return r
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
