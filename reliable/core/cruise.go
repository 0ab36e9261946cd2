package core

// cruise is the congestion control of a connection. It keeps the standing queue of the network short, without
// settings and without regard to losses: a lost packet is no sign of a queue here.
//
//	window = bytes in flight * base / standing + allowance            once per round trip
//
// base is the round trip time without a queue. standing is the least one of a round: the queue that stood through
// the whole round lengthened it. In equilibrium a connection has the allowance in the queue, so connections that
// know their base share a link equally. The rule is FAST TCP's (ToN 2006), the signal Copa's (NSDI 2018), and the
// drains are BBR's (ACM Queue 2016).
//
// A round ends with the echo of a chunk sent after it began. So its samples show the bytes in flight of the round
// before. See drain for how base is found.
type cruise struct {
	c         *Conn
	allowance int   // what a connection may have in the queue if delay has no other cause, in bytes
	window    int   // the limit of the bytes in flight
	base      int64 // the round trip time without a queue in nanoseconds, 0 if unknown
	phase     cruisePhase
	round     trip // the present round
	before    trip // the round before
	settled   int  // counts the rounds since the last drain
	free      int  // counts the rounds in a row without a queue
	noisy     bool // reports that delay has other causes than the own queue: paths differ, or the network jitters
	recent    recent
	drain     drain
}

type cruisePhase uint8

const (
	cruiseStart  cruisePhase = iota // doubles the window per round until there is a queue
	cruiseSteady                    // follows the rule
	cruiseDrain                     // empties the queue to see base
)

// trip is what a round has shown.
type trip struct {
	begin   int64 // when it began
	least   int64 // its least sample, 0 without samples
	sum     int64 // the sum of its samples
	samples int64 // counts its samples
	peak    int   // the largest number of bytes in flight that the window allowed
	losses  int   // counts its lost chunks
	limited bool  // reports that the window has held back a chunk
}

func (r *trip) mean() int64 { return r.sum / max(r.samples, 1) }

// recent remembers the delays of the last recentRounds to twice as many rounds.
type recent struct {
	most, spread         int64 // the largest standing queue, and the least spread, of the present rounds
	mostBefore, constant int64 // the same of the rounds before
	rounds               int   // counts the present rounds
}

const recentRounds = 4

// add takes the standing queue of a round, as time, and how much longer its mean sample was than the least one.
func (h *recent) add(queue, spread int64) {
	if h.rounds++; h.rounds > recentRounds {
		*h = recent{mostBefore: h.most, constant: h.spread, spread: spread, rounds: 1}
	}
	if h.rounds == 1 {
		h.spread = spread
	}
	h.most, h.spread = max(h.most, queue), min(h.spread, spread)
}

// longest is the longest standing queue.
func (h *recent) longest() int64 { return max(h.most, h.mostBefore) }

// jitter is by how much samples always differ. What differs only at times is a queue that comes and goes.
func (h *recent) jitter() int64 { return min(h.spread, h.constant) }

const (
	// cruiseAllowance is the default of Config.Allowance.
	cruiseAllowance = 64 << 10
	// cruiseFirst is the first window, in allowances.
	cruiseFirst = 4
	// cruisePatience is the number of rounds without a queue after which the window grows faster.
	cruisePatience = 4
	// cruiseRoom is the largest allowance in bytes, unless chunks are large.
	cruiseRoom = 2 << 20
)

func (a *cruise) init(c *Conn) {
	*a = cruise{c: c, window: c.cfg.WindowBytes}
	if c.cfg.Adapt {
		a.allowance = max(c.cfg.Allowance, 2*int(c.cfg.ChunkBytes))
		a.window = min(cruiseFirst*a.allowance, c.cfg.WindowBytes)
	}
	a.drain.fromAt, a.drain.until = never, never
}

// allows reports whether a transmission of n bytes fits. If not, the window may be too small.
func (a *cruise) allows(n int) bool {
	w := a.window
	if a.phase == cruiseDrain {
		w = min(w, a.drain.hold)
	}
	if a.c.flyingBytes+n <= w {
		return true
	}
	if k := &a.c.credits; k.sent < k.limit { // otherwise it waits for credit
		a.round.limited = true
	}
	return false
}

// onSent takes note of the bytes in flight after a transmission.
func (a *cruise) onSent() { a.round.peak = max(a.round.peak, a.c.flyingBytes) }

// onTimeout starts again after a timeout. A peer that has never answered may be late for other reasons.
func (a *cruise) onTimeout() {
	if a.base != 0 && a.c.cfg.Adapt {
		a.window = min(a.window, cruiseFirst*a.allowance)
		a.begin(cruiseStart)
	}
}

// begin begins a phase. What the rounds so far have shown is about the one before.
func (a *cruise) begin(p cruisePhase) {
	a.phase, a.settled, a.free, a.drain.until = p, 0, 0, never
	a.before = trip{}
	a.round = trip{begin: a.c.now, peak: a.c.flyingBytes}
}

// onEcho takes the round trip time of a chunk.
func (a *cruise) onEcho(sentAt, sample int64) {
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
	case a.phase == cruiseDrain:
		a.onDrained(sentAt, sample)
	case sample*100 < a.base*97 && a.phase == cruiseSteady && a.c.now-a.drain.endedAt >= cruiseJoin*a.base && a.limited():
		a.base = sample
		a.empty(drainDeep) // somebody else drains
	}
	if sample <= a.base {
		a.base, a.drain.seenAt = sample, a.c.now
	}
	if sentAt >= a.round.begin && a.phase != cruiseDrain {
		a.endRound()
	}
}

// limited reports whether the window has lately held back a chunk.
func (a *cruise) limited() bool { return a.round.limited || a.before.limited }

// endRound adapts the window to what the round has shown.
func (a *cruise) endRound() {
	r := &a.round
	r.peak = min(r.peak, a.window)
	if a.settled++; a.before.peak > 0 || a.phase == cruiseStart {
		if a.phase == cruiseStart {
			a.accelerate()
		} else {
			a.follow()
		}
		if a.phase == cruiseDrain {
			return
		}
	}
	a.before = *r
	a.round = trip{begin: a.c.now, peak: a.c.flyingBytes}
}

// accelerate ends a round of the start.
func (a *cruise) accelerate() {
	was, mean := a.before.peak, a.round.mean()
	if queue := int64(was) - int64(was)*a.base/mean; queue < 3*int64(a.allowance)/2 || 32*a.round.least <= 33*a.base {
		if a.limited() {
			a.set(2 * a.window)
		}
		return
	}
	a.set(scale(was, a.base, mean) + a.room())
	a.phase = cruiseSteady
	a.drain.seenAt = a.c.now
	if !a.noisy {
		a.empty(drainShallow)
	}
}

// follow ends a round of the steady phase.
func (a *cruise) follow() {
	r, was := &a.round, a.before.peak
	excess := r.least - a.base
	if usual := a.base + a.recent.longest(); r.least > 2*usual && !a.noisy {
		a.drain.usual = usual
	}
	room := a.room()
	a.noisy = room > a.allowance
	queue := was - scale(was, a.base, r.least)
	a.drain.spike = excess > 2*a.recent.longest() && 2*queue > 3*a.allowance && r.losses == 0 && !a.noisy
	a.recent.add(max(a.before.least-a.base, 0), r.mean()-r.least) // a jump may take two rounds
	if a.limited() {
		if why := a.calls(); why != drainNot {
			a.empty(why)
			return
		}
	}
	if 32*a.base >= 31*r.least {
		if a.free++; a.limited() {
			a.set(a.window + min(a.allowance<<min(max(a.free-cruisePatience, 0), 20), a.window))
		}
		return
	}
	a.free = 0
	w := was - queue + room
	if a.noisy { // a round's signal is not exact
		w = (w + a.window) / 2
	}
	if w < a.window || a.limited() {
		a.set(w)
	}
}

// room returns what the connection may have in the queue. Delay that is no queue must not count as one.
func (a *cruise) room() int {
	rate := float64(a.before.peak) / float64(max(a.round.mean(), 1))
	return min(max(a.allowance, int(rate*2*float64(a.recent.jitter()))), max(cruiseRoom, a.allowance))
}

func (a *cruise) set(window int) {
	a.window = min(max(window, int(a.c.cfg.ChunkBytes)), a.c.cfg.WindowBytes)
}

// scale returns n * part / whole.
func scale(n int, part, whole int64) int {
	return int(float64(n) * float64(part) / float64(max(whole, 1)))
}
