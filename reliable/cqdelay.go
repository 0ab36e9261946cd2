package reliable

import "ibverbx/verbs"

// cqDelay tells how long completions have waited in the inbox, from the timestamps of the device. It
// reads the device's clock rarely, because reading takes about a microsecond, and extrapolates.
type cqDelay struct {
	device verbs.ClockReader // reads the clock of timestamps, nil if completions have none
	readAt int64             // when the clock was read last, in nanoseconds of the context's clock
	ticks  uint64            // what it showed
	tickNs float64           // the length of a tick in nanoseconds, 0 until the clock has been read
}

const (
	// clockReread is how long a reading is used, in nanoseconds. Clocks drift by less than 0.1 us
	// in that time.
	clockReread = 1_000_000
	// maxAge bounds an age, in nanoseconds. A longer one is the fault of a clock that has wrapped.
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

// age returns how long a completion with a timestamp has waited at time now, in nanoseconds, or 0 if
// that is not known.
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
