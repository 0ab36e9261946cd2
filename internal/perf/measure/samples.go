package measure

import (
	"math"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

const (
	sampleBatch = 1 << 15

	// hdrDigits is the number of significant digits in the histogram; hdrLongest is its maximum.
	hdrDigits  = 3
	hdrLongest = time.Hour
)

// samples collects the times of a latency test. Adding is one store; flush does the arithmetic,
// outside the timed code. Minimum, maximum, average and deviation are exact. Percentiles are read
// from the histogram, which has three digits, and are clamped to minimum and maximum.
type samples struct {
	scale float64                 // factor from a sample to a reported time
	batch []time.Duration         // Invariant: len < cap between calls
	seen  int                     // samples of the batch already returned by recent
	hdr   *hdrhistogram.Histogram // scaled samples in nanoseconds

	count    int64         // number of samples
	min, max time.Duration // of all samples
	mean     float64       // Welford's running mean, in nanoseconds
	m2       float64       // Welford's sum of squared deviations
}

func newSamples(scale float64) *samples {
	return &samples{
		scale: scale, batch: make([]time.Duration, 0, sampleBatch), min: math.MaxInt64,
		hdr: hdrhistogram.New(1, int64(hdrLongest), hdrDigits),
	}
}

// add appends a sample and reports whether flush must be called before the next one.
func (s *samples) add(d time.Duration) (full bool) {
	s.batch = append(s.batch, d)
	return len(s.batch) == cap(s.batch)
}

// flush accounts for the samples of the batch.
func (s *samples) flush() {
	for _, d := range s.batch {
		s.count++
		s.min, s.max = min(s.min, d), max(s.max, d)
		delta := float64(d) - s.mean
		s.mean += delta / float64(s.count)
		s.m2 += delta * (float64(d) - s.mean)
		// The only possible error is a value out of range.
		_ = s.hdr.RecordValue(min(int64(math.Round(float64(d)*s.scale)), int64(hdrLongest)))
	}
	s.batch, s.seen = s.batch[:0], 0
}

// recent returns the median and the 99th percentile in microseconds of the unflushed samples since
// the last call, or 0 without any.
func (s *samples) recent() (p50, p99 float64) {
	fresh := slices.Clone(s.batch[s.seen:])
	s.seen = len(s.batch)
	return quantiles(fresh, s.scale/1e3, 4)
}

// quantiles sorts list and returns the median and the 99th percentile by nearest rank, scaled and
// rounded to the given number of decimal places. Both are 0 if list is empty.
func quantiles[T number](list []T, scale float64, digits int) (p50, p99 float64) {
	n := len(list)
	if n == 0 {
		return 0, 0
	}
	slices.Sort(list)
	return round(median(list)*scale, digits), round(float64(list[(99*n+99)/100-1])*scale, digits)
}

// result returns the statistics. At least one sample is required, and all must be flushed.
func (s *samples) result() *LatencyResult {
	us := func(ns float64) float64 { return round(ns*s.scale/1e3, 4) }
	r := &LatencyResult{Min: us(float64(s.min)), Max: us(float64(s.max)), Avg: us(s.mean), Stdev: us(math.Sqrt(s.m2 / float64(s.count)))}
	// The histogram returns the upper bound of a class, which may exceed the longest sample.
	at := func(percent float64) float64 {
		return min(max(round(float64(s.hdr.ValueAtPercentile(percent))/1e3, 4), r.Min), r.Max)
	}
	r.Typical, r.P99, r.P999 = at(50), at(99), at(99.9)
	return r
}

// number is the constraint of median.
type number interface{ ~int64 | ~float64 }

// median returns the median of a sorted, nonempty slice.
func median[T number](sorted []T) float64 {
	n := len(sorted)
	return (float64(sorted[(n-1)/2]) + float64(sorted[n/2])) / 2
}

// Bucket is the number of latency samples in a range of times.
type Bucket struct {
	// From is the lower bound in microseconds, inclusive.
	From float64 `json:"from_us"`
	// To is the upper bound in microseconds, exclusive.
	To float64 `json:"to_us"`
	// Count is the number of samples.
	Count int64 `json:"count"`
}

// histogram returns the nonempty buckets, in order. Each is at most a sixteenth wide. All samples
// must be flushed. A class of the finer histogram never straddles two buckets, because both subdivide
// powers of two.
func (s *samples) histogram() (list []Bucket) {
	coarse := hdrhistogram.New(1, int64(hdrLongest), 1)
	for _, bar := range s.hdr.Distribution() {
		_ = coarse.RecordValues(bar.From, bar.Count) // in range, as the finer histogram is
	}
	for _, bar := range coarse.Distribution() {
		if bar.Count > 0 {
			list = append(list, Bucket{From: float64(bar.From) / 1e3, To: float64(bar.To+1) / 1e3, Count: bar.Count})
		}
	}
	return list
}

// encoded returns the histogram in nanoseconds, in the V2 format of HdrHistogram, compressed and in
// base64. Histograms of several runs can be merged.
func (s *samples) encoded() (string, error) {
	b, err := s.hdr.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	return string(b), err
}
