package core

// congestion is the congestion control of a connection. It keeps the standing queue of the network short, without
// settings and without regard to losses, which do not indicate a queue here.
//
//	window = bytes in flight * base / standing + allowance            once per round trip
//
// base is the round trip time without a queue. standing is the minimum of a round: it includes the queue that stood
// throughout the round. In equilibrium a connection has the allowance in the queue, so connections that
// know their base share a link equally. The rule is FAST TCP's (ToN 2006), the signal Copa's (NSDI 2018), and the
// drains are BBR's (ACM Queue 2016).
//
// A round ends with the echo of a chunk sent after it began, so its samples reflect the bytes in flight of the round
// before. See drain for the measurement of base.
type congestion struct {
	c           *Conn
	allowance   int   // the target queue in bytes if delay has no other cause
	window      int   // the limit of the bytes in flight
	base        int64 // the round-trip time without a queue in nanoseconds, 0 if unknown
	phase       congestionPhase
	round       roundStats // the current round
	before      roundStats // the previous round
	emptyRounds int        // counts the rounds in a row without a queue
	noisy       bool       // set if delay has other causes than the connection's queue: unequal paths or jitter
	delays      delayHistory
	drain       drain
}

type congestionPhase uint8

const (
	phaseStart  congestionPhase = iota // doubles the window per round until a queue forms
	phaseSteady                        // follows the rule
	phaseDrain                         // empties the queue to measure base
)

// roundStats are the measurements of a round.
type roundStats struct {
	begin   int64 // when it began
	least   int64 // its minimum sample, 0 without samples
	sum     int64 // the sum of its samples
	samples int64 // counts its samples
	peak    int   // the largest number of bytes in flight that the window allowed
	losses  int   // counts its lost chunks
	limited bool  // set if the window has delayed a chunk
}

func (r *roundStats) mean() int64 { return r.sum / max(r.samples, 1) }

// delayHistory summarizes the delays of the last recentRounds to 2*recentRounds rounds.
type delayHistory struct {
	longestNow, spread      int64 // the longest standing queue and the minimum spread of the current rounds
	longestBefore, constant int64 // the same of the previous rounds
	rounds                  int   // counts the current rounds
}

const recentRounds = 4

// add adds the standing queue of a round, as time, and the difference between its mean and minimum samples.
func (h *delayHistory) add(queue, spread int64) {
	if h.rounds++; h.rounds > recentRounds {
		*h = delayHistory{longestBefore: h.longestNow, constant: h.spread, spread: spread, rounds: 1}
	}
	if h.rounds == 1 {
		h.spread = spread
	}
	h.longestNow, h.spread = max(h.longestNow, queue), min(h.spread, spread)
}

// longest returns the longest standing queue.
func (h *delayHistory) longest() int64 { return max(h.longestNow, h.longestBefore) }

// jitter is the permanent spread of samples. A temporary spread is a queue.
func (h *delayHistory) jitter() int64 { return min(h.spread, h.constant) }

const (
	// defaultAllowance is the default of Config.Allowance.
	defaultAllowance = 64 << 10
	// firstAllowances is the initial window, in allowances.
	firstAllowances = 4
	// growAfter is the number of rounds without a queue after which the window grows faster.
	growAfter = 4
	// maxAllowance is the maximum allowance in bytes, unless chunks are large.
	maxAllowance = 2 << 20
)

func (a *congestion) init(c *Conn) {
	*a = congestion{c: c, window: c.cfg.WindowBytes}
	if c.cfg.Adapt {
		a.allowance = max(c.cfg.Allowance, 2*int(c.cfg.ChunkBytes))
		a.window = min(firstAllowances*a.allowance, c.cfg.WindowBytes)
	}
	a.drain.fromAt, a.drain.until = never, never
}

// allows reports whether a transmission of n bytes fits the window, and records a refusal.
func (a *congestion) allows(n int) bool {
	w := a.window
	if a.phase == phaseDrain {
		w = min(w, a.drain.hold)
	}
	if a.c.flyingBytes+n <= w {
		return true
	}
	if k := &a.c.credits; k.sent < k.limit { // else it waits for credit
		a.round.limited = true
	}
	return false
}

// onSent records the bytes in flight after a transmission.
func (a *congestion) onSent() { a.round.peak = max(a.round.peak, a.c.flyingBytes) }

// onTimeout restarts after a timeout. A peer that has never responded may be late for other reasons.
func (a *congestion) onTimeout() {
	if a.base != 0 && a.c.cfg.Adapt {
		a.window = min(a.window, firstAllowances*a.allowance)
		a.begin(phaseStart)
	}
}

// begin begins a phase and discards the measurements of the previous one.
func (a *congestion) begin(p congestionPhase) {
	a.phase, a.emptyRounds, a.drain.until = p, 0, never
	a.before = roundStats{}
	a.round = roundStats{begin: a.c.now, peak: a.c.flyingBytes}
}

// onEcho processes the round trip time of a chunk.
func (a *congestion) onEcho(sentAt, sample int64) {
	if !a.c.cfg.Adapt {
		return
	}
	r := &a.round
	if r.samples++; r.least == 0 || sample < r.least {
		r.least = sample
	}
	r.sum += sample
	if a.base == 0 {
		a.base = sample
	}
	switch {
	case a.phase == phaseDrain:
		a.onDrained(sentAt, sample)
	case sample*100 < a.base*97 && a.phase == phaseSteady && a.c.now-a.drain.endedAt >= joinRest*a.base && a.limited():
		a.base = sample
		a.startDrain(drainDeep) // another connection drains
	}
	if sample <= a.base {
		a.base, a.drain.seenAt = sample, a.c.now
	}
	if sentAt >= a.round.begin && a.phase != phaseDrain {
		a.endRound()
	}
}

// limited reports whether the window has delayed a chunk in this round or the previous one.
func (a *congestion) limited() bool { return a.round.limited || a.before.limited }

// endRound adapts the window to the measurements of the round.
func (a *congestion) endRound() {
	r := &a.round
	r.peak = min(r.peak, a.window)
	if a.before.peak > 0 || a.phase == phaseStart {
		if a.phase == phaseStart {
			a.accelerate()
		} else {
			a.adjust()
		}
		if a.phase == phaseDrain {
			return
		}
	}
	a.before = *r
	a.round = roundStats{begin: a.c.now, peak: a.c.flyingBytes}
}

// accelerate adapts the window after a round of phaseStart.
func (a *congestion) accelerate() {
	flightBefore, mean := a.before.peak, a.round.mean()
	if queue := int64(flightBefore) - int64(flightBefore)*a.base/mean; queue < 3*int64(a.allowance)/2 || 32*a.round.least <= 33*a.base {
		if a.limited() {
			a.set(2 * a.window)
		}
		return
	}
	a.set(scale(flightBefore, a.base, mean) + a.queueTarget())
	a.phase = phaseSteady
	a.drain.seenAt = a.c.now
	if !a.noisy {
		a.startDrain(drainShallow)
	}
}

// adjust adapts the window after a round of phaseSteady.
func (a *congestion) adjust() {
	r, flightBefore := &a.round, a.before.peak
	excess := r.least - a.base
	if usual := a.base + a.delays.longest(); r.least > 2*usual && !a.noisy {
		a.drain.rttBeforeJump = usual
	}
	target := a.queueTarget()
	a.noisy = target > a.allowance
	queue := flightBefore - scale(flightBefore, a.base, r.least)
	a.drain.spike = excess > 2*a.delays.longest() && 2*queue > 3*a.allowance && r.losses == 0 && !a.noisy
	a.delays.add(max(a.before.least-a.base, 0), r.mean()-r.least) // a jump may span two rounds
	if a.limited() {
		if why := a.dueDrain(); why != drainNone {
			a.startDrain(why)
			return
		}
	}
	if 32*a.base >= 31*r.least {
		if a.emptyRounds++; a.limited() {
			a.set(a.window + min(a.allowance<<min(max(a.emptyRounds-growAfter, 0), 20), a.window))
		}
		return
	}
	a.emptyRounds = 0
	w := flightBefore - queue + target
	if a.noisy { // a single round is inexact
		w = (w + a.window) / 2
	}
	if w < a.window || a.limited() {
		a.set(w)
	}
}

// queueTarget returns the target queue in bytes. Jitter must not count as a queue.
func (a *congestion) queueTarget() int {
	rate := float64(a.before.peak) / float64(max(a.round.mean(), 1))
	return min(max(a.allowance, int(rate*2*float64(a.delays.jitter()))), max(maxAllowance, a.allowance))
}

func (a *congestion) set(window int) {
	a.window = min(max(window, int(a.c.cfg.ChunkBytes)), a.c.cfg.WindowBytes)
}

// scale returns n * part / whole.
func scale(n int, part, whole int64) int {
	return int(float64(n) * float64(part) / float64(max(whole, 1)))
}
