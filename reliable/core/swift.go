package core

// Swift is a Congestion based on the path's round-trip time. It follows Swift (SIGCOMM 2020).
//
//	rtt <= target, never cut    window += acknowledged
//	rtt <= target               window += step * acknowledged/window                one step per rtt
//	rtt >  target               window *= 1 - min(0.8 * (rtt-target)/rtt, 0.5)      once per rtt
//	loss                        window *= 0.5                                       once per rtt
//	timeout                     window  = the minimum                               once per rtt
//
// The minimum window is a fraction of a chunk. A window below one chunk means less than one chunk per
// round trip: Gap spaces them.
type Swift struct {
	target int64   // the round trip time to aim at, in nanoseconds
	chunk  float64 // the size of a full chunk, in bytes
	step   float64 // by how much the window grows per round trip, in bytes
	least  float64 // the smallest window, in bytes
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
	// swiftStart, swiftStep and swiftLeast are the first windows, the steps and the least windows of all
	// paths of a connection together, in chunks. A connection behaves the same with any number of paths.
	swiftStart, swiftStep, swiftLeast = 2, 4, 0.5
	// swiftFar is the least target, in least round trip times of the connection. A path over a long
	// distance would not get within a shorter one.
	swiftFar = 1.2
)

// NewSwift returns a Swift for one of a number of paths. It targets a round-trip time of target
// nanoseconds, with chunks of chunk bytes and windows of at most most bytes.
func NewSwift(target int64, paths, chunk, most int) *Swift {
	share := float64(chunk) / float64(paths)
	s := &Swift{
		target: target, chunk: float64(chunk), step: swiftStep * share, least: swiftLeast * share,
		most: float64(max(most, chunk)), cutAt: -1,
	}
	s.window = min(swiftStart*share, s.most)
	return s
}

// OnAck implements Congestion.
func (s *Swift) OnAck(now int64, bytes int, rtt, least int64) {
	if rtt > 0 {
		s.rtt = rtt
	}
	if s.rtt == 0 {
		return
	}
	target := max(s.target, int64(swiftFar*float64(least)))
	if s.rtt <= target {
		s.grow(float64(bytes))
	} else if rtt > 0 { // an old sample has had its effect
		s.cut(now, min(swiftFactor*float64(rtt-target)/float64(rtt), swiftMostCut))
	}
}

// grow grows the window after acknowledged bytes.
func (s *Swift) grow(bytes float64) {
	if s.cutAt >= 0 {
		bytes = s.step * bytes / max(s.window, bytes, 1)
	}
	s.window = min(s.window+bytes, s.most)
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
	s.window = max(s.window*(1-share), s.least)
}

// Window implements Congestion.
func (s *Swift) Window() int { return int(s.window) }

// Gap implements Congestion.
func (s *Swift) Gap(bytes int) int64 {
	if s.window >= s.chunk {
		return 0
	}
	return int64(float64(s.rtt) * float64(bytes) / s.window)
}
