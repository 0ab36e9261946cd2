package ibverbx

import "time"

// A request that is not cut brings its lane little work, and a doorbell and a completion
// cost as much as for a long one. Those that are handed over together therefore share a
// lane, as one chain, until they are runMax requests or runBytes long: at 400 Gb/s that is
// a microsecond of one lane's time.
const (
	runMax   = 16
	runBytes = 64 << 10
)

// pick chooses the lane for the next n bytes, nil if none has room. whole says that they
// are a whole request.
func (q *VirtualQP) pick(n uint32, whole bool) *lane {
	if whole && q.run > 0 && q.runBytes >= n {
		if l := q.runLane; l.room() {
			q.run--
			q.runBytes -= n
			return l
		}
	}
	l := q.choose(n)
	if l != nil && l.idle() {
		l.speed.since, l.speed.done = q.now, 0
	}
	if whole && n < runBytes {
		q.run, q.runBytes, q.runLane = runMax-1, runBytes-n, l
		if l == nil {
			q.run = 0
		}
	}
	return l
}

// choose applies the policy.
func (q *VirtualQP) choose(n uint32) *lane {
	switch q.cfg.Policy {
	case LeastBytes:
		return q.leastBytes()
	case TwoChoices:
		if l := q.twoChoices(n); l != nil {
			return l
		}
	case RoundRobin:
	}
	lanes := q.lanes
	for range lanes {
		l := lanes[q.cursor]
		if q.cursor++; q.cursor == len(lanes) {
			q.cursor = 0
		}
		if l.room() {
			return l
		}
	}
	return nil
}

// leastBytes begins where round robin would, so that equal lanes are taken in turn.
func (q *VirtualQP) leastBytes() *lane {
	var best *lane
	at := q.cursor
	for i := range q.lanes {
		k := q.cursor + i
		if k >= len(q.lanes) {
			k -= len(q.lanes)
		}
		if l := q.lanes[k]; l.room() && (best == nil || l.bytes < best.bytes) {
			best, at = l, k
		}
	}
	if best != nil {
		if q.cursor = at + 1; q.cursor == len(q.lanes) {
			q.cursor = 0
		}
	}
	return best
}

// twoChoices looks at two lanes at random and takes the one that would be done with n more
// bytes first; nil if neither has room.
func (q *VirtualQP) twoChoices(n uint32) *lane {
	k := uint64(len(q.lanes))
	if k == 1 {
		return nil
	}
	// xorshift64: the choice must be cheap and the same in every run, not secret.
	x := q.random
	x ^= x << 13
	x ^= x >> 7
	x ^= x << 17
	q.random = x
	i := uint64(uint32(x)) * k >> 32
	j := (i + 1 + (x>>32)*(k-1)>>32) % k
	a, b := q.lanes[i], q.lanes[j]
	if !a.room() {
		a, b = b, a
	}
	if !a.room() {
		return nil
	}
	if b.room() && b.speed.eta(b.bytes+uint64(n), q.fastest) < a.speed.eta(a.bytes+uint64(n), q.fastest) {
		return b
	}
	return a
}

// speed is how fast a lane has carried bytes lately. RC completes in order, so a lane is a
// queue with one server: while it is never idle, what completes between two looks at the
// clock is its rate.
type speed struct {
	rate  float64 // bytes per nanosecond, averaged; 0 if unknown
	since int64   // when the lane last completed something, or got work after being idle
	done  uint64  // bytes completed since
}

// eta is how long so many bytes take. A lane that was never measured counts as fast as the
// fastest, so that it is tried.
func (v *speed) eta(bytes uint64, fastest float64) float64 {
	rate := v.rate
	if rate == 0 {
		rate = max(fastest, 1)
	}
	return float64(bytes) / rate
}

// rateShare is the weight of a new sample of a lane's rate.
const rateShare = 1.0 / 8

// tick reads the clock if somebody needs it. Time is the same for everything that happens
// in one call.
func (q *VirtualQP) tick() {
	if q.cfg.Policy == TwoChoices || q.cfg.Control != nil {
		q.now = q.cfg.Now()
	}
}

// measure notes that a lane has completed bytes, after a tick.
func (q *VirtualQP) measure(l *lane, bytes uint64) {
	v := &l.speed
	v.done += bytes
	took := q.now - v.since
	if took <= 0 || v.done == 0 {
		return
	}
	sample := float64(v.done) / float64(took)
	if v.rate == 0 {
		v.rate = sample
	}
	v.rate += (sample - v.rate) * rateShare
	q.fastest = max(q.fastest, v.rate)
	v.since, v.done = q.now, 0
}

// monotonic is the clock of a Config without one.
func monotonic() func() int64 {
	start := time.Now()
	return func() int64 { return int64(time.Since(start)) }
}
