package softnic

import (
	"math"
	"time"
)

// never is a time that does not come.
const never = math.MaxInt64

// monotonic returns a clock that counts nanoseconds from now.
func monotonic() func() int64 {
	start := time.Now()
	return func() int64 { return int64(time.Since(start)) }
}

// wallClock returns the time in nanoseconds since 1970, for files that others read.
func wallClock() int64 { return time.Now().UnixNano() }
