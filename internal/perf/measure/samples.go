package measure

import (
	"math"
	"math/bits"
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
	return quantiles(fresh, s.scale/1e3, 4)
}

// quantiles sorts numbers and returns the median and the 99th percentile, scaled and rounded to the given decimal places.
// Without numbers both are 0.
func quantiles[T number](list []T, scale float64, digits int) (p50, p99 float64) {
	if len(list) == 0 {
		return 0, 0
	}
	slices.Sort(list)
	return round(median(list)*scale, digits), round(float64(percentile(list, 99, 100))*scale, digits)
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

// Bucket is how many samples of a latency test were in a range of times.
type Bucket struct {
	// From is the shortest time in microseconds.
	From float64 `json:"from_us"`
	// To is the time in microseconds below which the range ends.
	To float64 `json:"to_us"`
	// Count is the number of samples.
	Count int64 `json:"count"`
}

// bucketBits is the precision: a power of two has 1<<bucketBits buckets, each at most an eighth wide.
const bucketBits = 3

// bucketOf returns the number of the bucket of a time. Times below 1<<bucketBits ns have a bucket each.
func bucketOf(d time.Duration) int {
	n := uint64(max(d, 0))
	shift := max(bits.Len64(n)-1-bucketBits, 0)
	return shift<<bucketBits + int(n>>shift)
}

// bucketFrom returns the shortest time of a bucket.
func bucketFrom(bucket int) time.Duration {
	shift := max(bucket>>bucketBits-1, 0)
	return time.Duration(bucket-shift<<bucketBits) << shift
}

// histogram returns the buckets with samples, in order. All samples must be flushed. No class of the finer histogram lies
// in two of them, because both divide powers of two.
func (s *samples) histogram() []Bucket {
	counts := make([]int64, bucketOf(hdrLongest)+1)
	for _, bar := range s.hdr.Distribution() {
		counts[bucketOf(time.Duration(bar.From))] += bar.Count
	}
	us := func(d time.Duration) float64 { return float64(d) / 1e3 }
	var list []Bucket
	for i, n := range counts {
		if n > 0 {
			list = append(list, Bucket{From: us(bucketFrom(i)), To: us(bucketFrom(i + 1)), Count: n})
		}
	}
	return list
}

// encoded is the histogram in the V2 format of HdrHistogram, compressed and in base64, in nanoseconds. Those of several runs
// can be added up.
func (s *samples) encoded() (string, error) {
	b, err := s.hdr.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	return string(b), err
}
