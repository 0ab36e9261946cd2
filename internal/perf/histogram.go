package perf

import (
	"math/bits"
	"time"
)

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

// histogram returns the buckets with samples, in order. A time is scale times that of a sample. All samples must be
// flushed. If some were thinned out, those kept stand for them.
func (s *samples) histogram(scale float64) []Bucket {
	counts := make([]int64, bucketOf(1<<62)+1)
	for _, d := range s.kept {
		counts[bucketOf(d)] += int64(s.every)
	}
	us := func(d time.Duration) float64 { return round(float64(d)*scale/1e3, 4) }
	var list []Bucket
	for i, n := range counts {
		if n > 0 {
			list = append(list, Bucket{From: us(bucketFrom(i)), To: us(bucketFrom(i + 1)), Count: n})
		}
	}
	return list
}
