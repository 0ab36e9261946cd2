package enginetest

import (
	"slices"
	"testing"
	"time"
)

// Alternate runs two functions alternately. It reports the speed of the second in bytes per second,
// and its median speed relative to the first.
func Alternate(b *testing.B, bytes int64, first, second func()) {
	var ratios []float64
	var spent time.Duration
	timed := func(f func()) time.Duration {
		begin := time.Now()
		f()
		return time.Since(begin)
	}
	first()
	second()
	b.SetBytes(bytes)
	b.ResetTimer()
	for b.Loop() {
		var x, y time.Duration
		if len(ratios)%2 == 0 {
			x, y = timed(first), timed(second)
		} else {
			y, x = timed(second), timed(first)
		}
		spent += y
		ratios = append(ratios, float64(x)/float64(y))
	}
	slices.Sort(ratios)
	b.ReportMetric(ratios[len(ratios)/2], "of-raw")
	b.ReportMetric(float64(bytes)*float64(len(ratios))/spent.Seconds()/1e6, "MB/s")
}
