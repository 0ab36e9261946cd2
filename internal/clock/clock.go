// Package clock provides the time as the engine and the NICs count it: in nanoseconds, as an
// int64, so that a simulation can count it in their place.
package clock

import (
	"math"
	"time"
)

// Never is a time in the infinite future.
const Never = math.MaxInt64

// Monotonic returns a clock that counts from 1 at the time of the call, so that 0 is always in
// the past.
func Monotonic() func() int64 {
	start := time.Now()
	return func() int64 { return int64(time.Since(start)) + 1 }
}
