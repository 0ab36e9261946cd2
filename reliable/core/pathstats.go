package core

// PathStats is what one path has carried, and how long its round trips take. A path that loses more, or
// takes longer, than the others of its connection is a bad path. Times are in nanoseconds.
type PathStats struct {
	Sent          uint64 // counts transmissions
	Retransmitted uint64 // counts the transmissions of Sent that repeat one, of this path or of another
	Lost          uint64 // counts the transmissions of Sent that were lost, or were under way when the path went down
	RTT           int64  // the smoothed round trip time of the present epoch, 0 if none was measured
	LeastRTT      int64  // the least round trip time of the present epoch, 0 if none was measured
}

// QueueDelay is how long transmissions wait in queues on the path, in nanoseconds: the round trip time
// above the least one. A path that moves to a longer route counts the difference, too.
func (s *PathStats) QueueDelay() int64 { return max(s.RTT-s.LeastRTT, 0) }

// PathStats returns what a path has carried, and its round trip times.
func (c *Conn) PathStats(path int) PathStats {
	p := &c.paths[path]
	s := p.stats
	if p.measured {
		s.RTT, s.LeastRTT = p.rtt.mean, p.rtt.least
	}
	return s
}
