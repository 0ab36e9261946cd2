package sim

import "time"

const (
	// maxTurns bounds a run: a world that needs more is in a loop.
	maxTurns = 2_000_000
	// stillTurns is how often everybody may look and find nothing to do, with nothing due
	// later, before the world counts as stuck: what a NIC has refused is tried again by
	// the next poll, and one poll for one completion takes 64 of a CQ at the most, whether
	// there is anything to report in them or not.
	stillTurns = 200
)

// limit is how long a world may go on after its last fault was over.
func (w *world) limit() int64 {
	if w.plan.Failover {
		return w.healed + int64(300*time.Second)
	}
	return w.healed + int64(60*time.Second)
}

// run lets the world go on until all is done, or something is wrong.
func (w *world) run() {
	for w.failure == nil && w.phase != phaseDone {
		for do, ok := w.agenda.take(w.now); ok; do, ok = w.agenda.take(w.now) {
			if do != nil {
				do()
			}
			w.wake()
		}
		for _, l := range w.links {
			if at, pending := l.Next(); pending && at <= w.now {
				l.Step()
				w.wake()
			}
		}
		progress := false
		for _, h := range w.hosts {
			if h.awake() && h.turn() {
				progress = true
				h.wake()
			}
		}
		if w.failure != nil {
			return
		}
		if w.stats.turns++; w.stats.turns > maxTurns {
			w.fail("progress", "", "the world does not come to an end after %d turns: %s", w.stats.turns, w.outstanding())
			return
		}
		if w.advance() || progress {
			w.still, w.tick = 0, minTick
			continue
		}
		if w.jump() {
			w.still = 0
		} else if w.still++; w.still == stillTurns {
			w.fail("progress", "", "nothing is due any more: %s", w.outstanding())
		} else {
			w.wake()
		}
	}
}

// jump moves time to when something is due next. It reports false if nothing is.
func (w *world) jump() bool {
	next := w.agenda.next()
	for _, l := range w.links {
		if at, pending := l.Next(); pending {
			next = min(next, at)
		}
	}
	for _, p := range w.control {
		next = min(next, p.next())
	}
	for _, h := range w.hosts {
		next = min(next, max(h.look, h.paused))
	}
	if at := w.now + int64(w.tick); w.plan.Failover && next > at {
		next = at
		w.tick = min(2*w.tick, maxTick)
		w.wake()
	}
	if next == never {
		return false
	}
	w.now = max(next, w.now+int64(w.plan.Quantum))
	if w.now > w.limit() {
		w.fail("progress", "", "not done %v after the last fault was over: %s", time.Duration(w.now-w.healed), w.outstanding())
	}
	return true
}

// wake makes everybody look, each after a while of its own.
func (w *world) wake() {
	for _, h := range w.hosts {
		h.wake()
	}
}

func (h *host) wake() {
	if h.look != never {
		return
	}
	h.look = h.w.now
	if polls := int64(h.w.plan.Work.Polls); polls > 0 {
		h.look += h.w.rng.Int64N(polls)
	}
}

// awake reports whether a host looks now.
func (h *host) awake() bool {
	if h.w.now < h.look || h.w.now < h.paused {
		return false
	}
	h.look = never
	return true
}

// advance begins the next phase if this one is done, and reports whether it did.
func (w *world) advance() bool {
	switch w.phase {
	case phaseWork:
		if w.now < w.healed || !w.all((*end).idle) {
			return false
		}
		for _, e := range w.ends {
			e.postBarrier()
		}
		w.phase = phaseBarrier
	case phaseBarrier:
		if !w.all((*end).over) {
			return false
		}
		for _, e := range w.ends {
			e.checkCapacity()
		}
		w.phase = phaseCapacity
	case phaseCapacity:
		if !w.all((*end).over) {
			return false
		}
		w.phase = phaseDone
	case phaseDone:
	}
	return true
}

func (w *world) all(f func(*end) bool) bool {
	for _, e := range w.ends {
		if !f(e) {
			return false
		}
	}
	return true
}

// idle reports whether an application has nothing more to post.
func (e *end) idle() bool { return len(e.backlog) == 0 && (e.budget == 0 || e.failed) }
