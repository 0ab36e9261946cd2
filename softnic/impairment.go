package softnic

import (
	"time"

	"ibverbx/verbs"
)

// Impairment says what a FaultLink does to the packets of one direction. Probabilities are per
// packet, from 0 to 1. The zero value does nothing.
type Impairment struct {
	// Loss is the probability that a packet is lost.
	Loss float64
	// Duplicate is the probability that a packet arrives twice.
	Duplicate float64
	// Reorder is the probability that up to four later packets overtake a packet.
	Reorder float64
	// Corrupt is the probability that a packet arrives damaged. The receiver counts it as a bad
	// ICRC and drops it.
	Corrupt float64
	// Delay is the time that every packet takes.
	Delay time.Duration
	// Jitter is the longest random time that is added to Delay. It does not reorder packets.
	Jitter time.Duration
	// Rate is the speed of the wire in bytes per second. Zero is no limit.
	Rate float64
}

func (i Impairment) validate() error {
	for _, p := range [...]struct {
		name  string
		value float64
	}{{"Loss", i.Loss}, {"Duplicate", i.Duplicate}, {"Reorder", i.Reorder}, {"Corrupt", i.Corrupt}} {
		if !(p.value >= 0 && p.value <= 1) {
			return verbs.Invalidf("Impairment.%s is %v: want a probability from 0 to 1", p.name, p.value)
		}
	}
	switch {
	case i.Delay < 0 || i.Jitter < 0:
		return verbs.Invalidf("Impairment.Delay %v and Jitter %v: want at least 0", i.Delay, i.Jitter)
	case !(i.Rate >= 0):
		return verbs.Invalidf("Impairment.Rate is %v: want bytes per second, at least 0", i.Rate)
	}
	return nil
}

// FaultStats counts what happened to the packets of one direction.
type FaultStats struct {
	Sent       uint64
	Delivered  uint64
	Lost       uint64
	Duplicated uint64
	Reordered  uint64
	Corrupted  uint64
	Cut        uint64
	// Overflow counts packets that were lost because the queue of a Path or Bottleneck was full.
	Overflow uint64
}
