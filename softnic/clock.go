package softnic

import (
	"time"

	"ibverbx/internal/clock"
)

// never is a time that does not come.
const never = clock.Never

// ticksPerSecond is the frequency of the clock of completions.
const ticksPerSecond = 1e9

// ticks reads the clock of completions, which begins at 1: 0 is no timestamp.
func (c *core) ticks() uint64 { return uint64(c.clock()) + 1 }

// ReadClock implements verbs.Clocked.
func (x *hostContext) ReadClock() (ticks, hz uint64, err error) {
	return x.core.ticks(), ticksPerSecond, nil
}

// wallClock returns the time in nanoseconds since 1970, for captured packets.
func wallClock() int64 { return time.Now().UnixNano() }
