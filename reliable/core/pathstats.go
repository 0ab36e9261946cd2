package core

// PathStats are the counters and round-trip times of one path. A path with more losses or longer round
// trips than the connection's other paths is bad. Times are in nanoseconds.
type PathStats struct {
	Sent          uint64 // counts transmissions of chunks
	Retransmitted uint64 // counts the retransmissions among Sent, from this path or another
	Lost          uint64 // counts the transmissions in Sent that were lost, or in flight when the path went down
	RTT           int64  // the smoothed round-trip time of the current epoch, 0 if not measured
	LeastRTT      int64  // the minimum round-trip time of the current epoch, 0 if not measured
}

// QueueDelay is the estimated queueing delay on the path, in nanoseconds: the round-trip time above the
// minimum. After a move to a longer route it includes the difference.
func (s *PathStats) QueueDelay() int64 { return max(s.RTT-s.LeastRTT, 0) }

// PathStats returns the counters and round-trip times of a path.
func (c *Conn) PathStats(path int) PathStats {
	p := &c.paths[path]
	s := p.stats
	if p.measured {
		s.RTT, s.LeastRTT = p.rtt.mean, p.rtt.least
	}
	return s
}
