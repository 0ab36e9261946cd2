package core

// Swift is a Congestion that follows the round trip time: one chunk more per round trip as long
// as it is within the target, and less, once per round trip, by how far it is beyond. It is made
// after Swift (SIGCOMM 2020), without pacing: the least window is one chunk.
//
//	rtt <= target    window += chunk * acknowledged/window
//	rtt >  target    window *= 1 - min(0.8 * (rtt-target)/rtt, 0.5)      once per rtt
//	loss             window *= 0.5                                       once per rtt
//	timeout          window  = one chunk                                 once per rtt
type Swift struct {
	target int64
	chunk  float64
	most   float64
	window float64
	rtt    int64 // the latest that was measured, 0 if none was
	cutAt  int64 // when the window was last made smaller, -1 if it never was
}

const (
	swiftFactor  = 0.8 // how much of what is beyond the target is given up
	swiftMostCut = 0.5
	// swiftStart is the first window, in chunks.
	swiftStart = 16
)

// NewSwift returns a Swift that aims at a round trip time of target nanoseconds, for chunks of
// chunk bytes and windows of one chunk to most bytes.
func NewSwift(target int64, chunk, most int) *Swift {
	s := &Swift{target: target, chunk: float64(chunk), most: float64(max(most, chunk)), cutAt: -1}
	s.window = min(swiftStart*s.chunk, s.most)
	return s
}

// OnSent implements Congestion.
func (*Swift) OnSent(int64, int) {}

// OnAck implements Congestion.
func (s *Swift) OnAck(now int64, bytes int, rtt int64) {
	if rtt > 0 {
		s.rtt = rtt
	}
	if s.rtt == 0 {
		return
	}
	if s.rtt <= s.target {
		s.window = min(s.window+s.chunk*float64(bytes)/s.window, s.most)
		return
	}
	if rtt > 0 { // what is old has had its effect
		s.cut(now, min(swiftFactor*float64(rtt-s.target)/float64(rtt), swiftMostCut))
	}
}

// OnLoss implements Congestion.
func (s *Swift) OnLoss(now int64, _ int, timeout bool) {
	if timeout {
		s.cut(now, 1)
		return
	}
	s.cut(now, swiftMostCut)
}

// cut makes the window smaller by a share, once per round trip: what comes before the next one
// tells of the same queue.
func (s *Swift) cut(now int64, share float64) {
	if s.cutAt >= 0 && now-s.cutAt < s.rtt {
		return
	}
	s.cutAt = now
	s.window = max(s.window*(1-share), s.chunk)
}

// Window implements Congestion.
func (s *Swift) Window() int { return int(s.window) }
