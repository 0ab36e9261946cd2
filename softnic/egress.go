package softnic

import "ibverbx/verbs"

// egress is the port of a switch that leads to one NIC: whatever goes there, from whomever,
// waits in its queue.
type egress struct {
	rate  float64 // bytes per second
	limit float64 // bytes that may wait
	busy  int64   // when the queue is empty again
	rest  float64 // of a nanosecond, which the next packet has to wait, too
	peak  float64 // the most bytes that have waited
}

// Bottleneck makes all packets to a NIC go through one port of a switch, of a rate in bytes
// per second and with a queue of so many bytes. What does not fit is lost, and counted as
// FaultStats.Overflow: several senders that together are faster than the port meet there. A
// rate of 0 takes the port away again.
func (l *FaultLink) Bottleneck(to *NIC, rate float64, queue int) error {
	if to == nil || !(rate >= 0) || queue < 0 {
		return verbs.NewOpError("set bottleneck", "", 0, verbs.Invalidf("a NIC, and a rate and a queue of at least 0, not %v and %d", rate, queue))
	}
	l.core.mu.Lock()
	defer l.core.mu.Unlock()
	if to.egress = nil; rate > 0 {
		to.egress = &egress{rate: rate, limit: float64(queue)}
	}
	return nil
}

// LongestQueue returns the most bytes that have waited at the port that Bottleneck has made,
// since then. It is 0 if there is none.
func (l *FaultLink) LongestQueue(to *NIC) int {
	l.core.mu.Lock()
	defer l.core.mu.Unlock()
	if to == nil || to.egress == nil {
		return 0
	}
	return int(to.egress.peak)
}

// pass makes a packet wait its turn. It reports false if the queue has no room for it. A
// packet that finds the port idle is never refused, however short the queue is.
func (e *egress) pass(f *flight) bool {
	size := float64(len(f.buf) + PacketOverhead)
	waiting := float64(max(e.busy-f.at, 0)) * e.rate / 1e9
	if waiting > 0 && waiting+size > e.limit {
		return false
	}
	e.peak = max(e.peak, waiting+size)
	exact := size/e.rate*1e9 + e.rest
	wire := int64(exact)
	e.rest = exact - float64(wire)
	f.at = max(f.at, e.busy) + wire
	e.busy = f.at
	return true
}
