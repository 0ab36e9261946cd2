package core

// Swift is a Congestion that follows the round trip time. The window grows by one chunk per round trip
// while the round trip is within the target. Beyond the target it shrinks once per round trip, by how
// far the round trip is beyond. It follows Swift (SIGCOMM 2020) without pacing: the least window is one
// chunk.
//
//	rtt <= target    window += chunk * acknowledged/window
//	rtt >  target    window *= 1 - min(0.8 * (rtt-target)/rtt, 0.5)      once per rtt
//	loss             window *= 0.5                                       once per rtt
//	timeout          window  = one chunk                                 once per rtt
type Swift struct {
	target int64   // the round trip time to aim at, in nanoseconds
	chunk  float64 // the least window, in bytes
	most   float64 // the largest window, in bytes
	window float64 // the present window, in bytes
	rtt    int64   // the latest round trip time, 0 if none was measured
	cutAt  int64   // when the window was last cut, -1 if it never was
}

const (
	// swiftFactor is the part of the excess over the target by which the window shrinks.
	swiftFactor = 0.8
	// swiftMostCut is the largest part of the window that is cut at once, except after a timeout.
	swiftMostCut = 0.5
	// swiftStart is the first window, in chunks.
	swiftStart = 16
)

// NewSwift returns a Swift that aims at a round trip time of target nanoseconds, with windows of one
// chunk of chunk bytes to most bytes.
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
	if rtt > 0 { // an old sample has had its effect
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

// cut shrinks the window by a share, once per round trip: later signals of the same round trip are about
// the same queue.
func (s *Swift) cut(now int64, share float64) {
	if s.cutAt >= 0 && now-s.cutAt < s.rtt {
		return
	}
	s.cutAt = now
	s.window = max(s.window*(1-share), s.chunk)
}

// Window implements Congestion.
func (s *Swift) Window() int { return int(s.window) }
