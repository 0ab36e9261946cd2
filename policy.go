package ibverbx

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
		l.speed.begin(q.now)
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
		return q.twoChoices(n)
	case AutoPolicy, RoundRobin:
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

// twoChoices draws two lanes and takes the one that would be done with n more bytes first.
// Lanes are drawn as often as they are fast: if all were drawn alike, two slow ones would
// meet too often where most lanes are slow. If that does not find two with room it looks at
// all of them; nil if none has any.
func (q *VirtualQP) twoChoices(n uint32) *lane {
	a, b := q.drawLane(), q.drawLane()
	if a == nil || b == nil || a == b {
		return q.soonest(n)
	}
	if q.eta(b, n) < q.eta(a, n) {
		return b
	}
	return a
}

// drawTries is how many lanes drawLane looks at.
const drawTries = 4

// drawLane returns a lane with room at random, weighted by rate; nil if it has found none.
func (q *VirtualQP) drawLane() *lane {
	for range drawTries {
		x := q.random.Next()
		l := q.lanes[uint64(uint32(x))*uint64(len(q.lanes))>>32]
		u := float64(x>>32) * (1.0 / (1 << 32))
		if l.takes() && u*u*q.fastest <= l.speed.weight(q.fastest) {
			return l
		}
	}
	return nil
}

// takes reports whether the policy may give the lane more: it has room, and no more than it
// has carried so far. At first nobody knows how long a lane will take, and what waits there
// may hold up everything behind it: so lanes get a little at first, and twice as much with
// every answer. If that holds a request back, a completion is due that brings it on.
func (l *lane) takes() bool { return l.room() && l.bytes < l.speed.carried+untriedBytes }

// untriedBytes is what a lane gets that has carried nothing yet.
const untriedBytes = 64 << 10

// soonest returns the lane of all that would be done with n more bytes first, nil if none
// has room. It begins where round robin would, so that equal lanes are taken in turn.
func (q *VirtualQP) soonest(n uint32) (best *lane) {
	least := 0.0
	for range q.lanes {
		l := q.lanes[q.cursor]
		if q.cursor++; q.cursor == len(q.lanes) {
			q.cursor = 0
		}
		if !l.takes() {
			continue
		}
		if t := q.eta(l, n); best == nil || t < least {
			best, least = l, t
		}
	}
	if best != nil {
		if q.cursor = int(best.index) + 1; q.cursor == len(q.lanes) {
			q.cursor = 0
		}
	}
	return best
}

// speed is how fast a lane has carried bytes lately, and how long one takes that does not
// wait. RC completes in order, so a lane is a queue with one server: while it is never idle,
// what completes between two looks at the clock says its rate, and what the first bytes
// after an idle time take beyond that is its latency.
type speed struct {
	// Bytes that were carried in so many nanoseconds, of which the older count less and
	// less; their quotient is the rate, 0 if it is not known.
	bytes, time float64
	rate        float64
	latency     float64 // in nanoseconds, averaged
	since       int64   // when the lane last completed something, or got work after being idle
	done        uint64  // bytes completed since
	carried     uint64  // bytes completed in all
	waits       bool    // it got work after being idle, and none of that has completed
	known       bool    // latency is
}

// A new sample of a rate, and of a latency, counts so much against all before it.
const (
	rateShare    = 1.0 / 16
	latencyShare = 1.0 / 8
)

// weight is how often a lane is drawn. One that was never measured counts as fast as the
// fastest, so that it is tried.
func (v *speed) weight(fastest float64) float64 {
	if v.rate == 0 {
		return fastest
	}
	return v.rate
}

// stale is after how many times of its own length the estimate for an idle lane has lost
// half of its weight: a lane that was slow once is tried again, and if it still is that
// costs little.
const stale = 16

// eta is how long a lane takes for n bytes more. If it has said nothing for longer than
// that, it takes at least as long again: a path that is dead gets nothing more, long before
// its NIC gives up.
func (q *VirtualQP) eta(l *lane, n uint32) float64 {
	v := &l.speed
	rate := v.weight(max(q.fastest, 1))
	t := v.latency + float64(l.bytes+uint64(n))/rate
	age := float64(q.now - v.since)
	if !l.idle() {
		return max(t, age)
	}
	return t * t / (t + age/stale + 1)
}

// begin notes that an idle lane gets work. What was measured before counts the less the
// longer ago that is.
func (v *speed) begin(now int64) {
	if v.time > 0 {
		f := v.time / (v.time + float64(now-v.since))
		v.bytes *= f
		v.time *= f
	}
	v.since, v.done, v.waits = now, 0, true
}

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
	v.carried += bytes
	took := q.now - v.since
	if took <= 0 || v.done == 0 {
		return
	}
	if v.waits {
		v.delayed(float64(took), float64(v.done))
	} else {
		v.bytes += float64(v.done) - v.bytes*rateShare
		v.time += float64(took) - v.time*rateShare
		v.rate = v.bytes / v.time
	}
	// The fastest must have been measured lately.
	q.fastest = max(q.fastest*(1-rateShare/16), v.rate)
	v.since, v.done, v.waits = q.now, 0, false
}

// delayed takes the time of the first bytes after an idle time. If the rate is not known, or
// they came sooner than it allows, all of it counts for both, until there is more to go by.
func (v *speed) delayed(took, bytes float64) {
	if took*v.rate > bytes {
		took -= bytes / v.rate
	} else {
		v.bytes, v.time = bytes/4, took/4 // for a start: what comes counts more
		v.rate = v.bytes / v.time
	}
	if !v.known {
		v.known, v.latency = true, took
		return
	}
	v.latency += (took - v.latency) * latencyShare
}
