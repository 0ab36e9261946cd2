package softnic

import (
	"time"

	"ibverbx/verbs"
)

// Impairment describes the faults that a link injects in one direction. Probabilities are per packet,
// from 0 to 1. The zero value injects none.
type Impairment struct {
	// Loss is the probability of losing a packet.
	Loss float64
	// Duplicate is the probability of delivering a packet twice.
	Duplicate float64
	// Reorder is the probability that up to four later packets overtake a packet.
	Reorder float64
	// Corrupt is the probability of corrupting a packet. The receiver drops it and counts it as BadICRC.
	Corrupt float64
	// Delay is the one-way latency of every packet.
	Delay time.Duration
	// Jitter is the maximum random delay added to Delay. It does not reorder packets.
	Jitter time.Duration
	// Rate is the bandwidth in bytes per second. Zero means unlimited.
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

// FaultStats counts the packets of one direction by outcome.
type FaultStats struct {
	Sent       uint64 // packets handed to the link
	Delivered  uint64 // packets that arrived, including duplicates
	Lost       uint64 // packets lost at random
	Duplicated uint64 // packets delivered twice
	Reordered  uint64 // packets overtaken by later ones
	Corrupted  uint64 // packets corrupted
	Cut        uint64 // packets dropped by Cut or Path.Cut
	// Overflow counts packets lost because the queue of a Path or Bottleneck was full.
	Overflow uint64
}

// egress is a switch port with a queue shared by all its packets.
type egress struct {
	limiter rateLimiter
	// rate is in bytes per second.
	rate float64
	// limit is the queue size in bytes.
	limit float64
	// peak is the maximum number of bytes queued so far.
	peak float64
}

// Bottleneck routes all packets to a NIC through one switch port with a rate in bytes per second and a
// queue in bytes. Packets that do not fit are lost and counted as FaultStats.Overflow. Use it to
// simulate incast. A rate of 0 removes the port. It returns verbs.ErrInvalid for a nil NIC or a negative
// value.
func (l *FaultLink) Bottleneck(to *NIC, rate float64, queue int) error {
	if to == nil || !(rate >= 0) || queue < 0 {
		return verbs.NewOpError("set bottleneck", "", 0, verbs.Invalidf("rate %v and queue %d: want a NIC, and both at least 0", rate, queue))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if to.egress = nil; rate > 0 {
		to.egress = &egress{rate: rate, limit: float64(queue)}
	}
	return nil
}

// LongestQueue returns the maximum number of bytes queued at the Bottleneck port so far, 0 without one.
func (l *FaultLink) LongestQueue(to *NIC) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if to == nil || to.egress == nil {
		return 0
	}
	return int(to.egress.peak)
}

// pass queues a packet and sets its departure time. It returns false if the queue is full. An idle port
// always accepts a packet, even one larger than the queue.
func (e *egress) pass(f *inFlightPacket) bool {
	size := float64(len(f.buf) + PacketOverhead)
	waiting := float64(max(e.limiter.busy-f.at, 0)) * e.rate / 1e9
	if waiting > 0 && waiting+size > e.limit {
		return false
	}
	e.peak = max(e.peak, waiting+size)
	f.at, _ = e.limiter.occupy(f.at, len(f.buf), e.rate)
	return true
}
