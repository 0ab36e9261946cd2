package reliable

import "ibverbx/verbs"

// cqDelay computes the time that completions have waited in the CQ from the device's timestamps. It
// reads the device's clock rarely, because reading takes about a microsecond, and extrapolates.
type cqDelay struct {
	device verbs.ClockReader // reads the clock of timestamps, nil if completions have none
	readAt int64             // the last reading, in nanoseconds of the context's clock
	ticks  uint64            // the ticks of that reading
	tickNs float64           // the length of a tick in nanoseconds, 0 until the clock has been read
}

const (
	// clockReread is the lifetime of a reading, in nanoseconds. Clocks drift by less than 0.1 us
	// in that time.
	clockReread = 1_000_000
	// maxAge is the maximum age, in nanoseconds. A longer one means that a clock has wrapped.
	maxAge = int64(10_000_000_000)
)

// newCQDelay returns the cqDelay of a device, without a clock if it has none.
func newCQDelay(ctx verbs.Context, attr *verbs.DeviceAttr) (s cqDelay) {
	if attr.Capabilities&verbs.CapTimestamp != 0 {
		s.device, _ = ctx.(verbs.ClockReader)
	}
	return s
}

// read reads the device's clock at time now. A clock that cannot be read is not read again.
func (s *cqDelay) read(now int64) {
	ticks, hz, err := s.device.ReadClock()
	if err != nil || hz == 0 {
		s.device = nil
		return
	}
	s.readAt, s.ticks, s.tickNs = now, ticks, 1e9/float64(hz)
}

// age returns the wait of a completion with a timestamp until now, in nanoseconds, or 0 if
// unknown.
func (s *cqDelay) age(now int64, stamp uint64) int64 {
	if s.device != nil && (s.tickNs == 0 || now-s.readAt > clockReread) {
		s.read(now)
	}
	if s.device == nil {
		return 0
	}
	age := now - s.readAt + int64(float64(int64(s.ticks-stamp))*s.tickNs)
	if age < 0 || age > maxAge {
		return 0
	}
	return age
}
