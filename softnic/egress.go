package softnic

import "ibverbx/verbs"

// egress is a port of a switch with a queue. All packets that go through it wait in that queue.
type egress struct {
	wire wire
	// rate is in bytes per second.
	rate float64
	// limit is how many bytes may wait.
	limit float64
	// peak is the most bytes that have waited.
	peak float64
}

// Bottleneck makes all packets to a NIC go through one port of a switch with a rate in bytes
// per second and a queue of a size in bytes. Packets that do not fit are lost and counted as
// FaultStats.Overflow: senders that together are faster than the port meet there. A rate of 0
// removes the port.
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

// LongestQueue returns the most bytes that have waited at the port that Bottleneck made, 0 if
// there is none.
func (l *FaultLink) LongestQueue(to *NIC) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if to == nil || to.egress == nil {
		return 0
	}
	return int(to.egress.peak)
}

// pass makes a packet wait its turn. It reports false if the queue has no room for the packet.
// An idle port always accepts a packet, however short its queue is.
func (e *egress) pass(f *flight) bool {
	size := float64(len(f.buf) + PacketOverhead)
	waiting := float64(max(e.wire.busy-f.at, 0)) * e.rate / 1e9
	if waiting > 0 && waiting+size > e.limit {
		return false
	}
	e.peak = max(e.peak, waiting+size)
	f.at, _ = e.wire.occupy(f.at, len(f.buf), e.rate)
	return true
}
