package softnic

import (
	"time"

	"ibverbx/internal/clock"
)

// never is a time that does not come.
const never = clock.Never

// wallClock returns the time in nanoseconds since 1970, for captured packets.
func wallClock() int64 { return time.Now().UnixNano() }
