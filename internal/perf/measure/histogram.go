package measure

import (
	"math/bits"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
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
