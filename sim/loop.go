package sim

import "time"

const (
	// maxTurns bounds a run. A world that needs more turns hangs.
	maxTurns = 2_000_000
	// stillTurns is the number of turns without progress or pending events after which the world is stuck. One is not enough, because the
	// next poll retries refused posts, and a poll may consume 64 completions of a CQ without reporting any.
	stillTurns = 200
	// longJump is the longest jump of time in nanoseconds while an end does not try to post because of
	// an earlier refusal. Otherwise time could pass a fault while no request is in flight.
	longJump = 100_000
)

// limit is the time limit of a world.
func (w *world) limit() int64 {
	if w.plan.Failover {
		return w.healed + int64(300*time.Second)
	}
	return w.healed + int64(60*time.Second)
}

// run runs the world until it is done or a guarantee is violated.
func (w *world) run() {
	for !w.failed() && w.phase != phaseDone {
		for do, ok := w.eventQueue.take(w.now); ok; do, ok = w.eventQueue.take(w.now) {
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
		for _, p := range w.control {
			p.arrive()
		}
		progress := false
		for _, h := range w.hosts {
			h.step()
			if !h.awake() {
				continue
			}
			if h.turn() {
				progress = true
				h.wake()
			}
			h.touch()
		}
		if len(w.placed) > 0 {
			w.countPlaced()
		}
		if w.failed() {
			return
		}
		if w.report.Turns++; w.report.Turns > maxTurns {
			w.fail("progress", "", "the world is not done after %d turns: %s", w.report.Turns, w.outstanding())
			return
		}
		if w.advance() || progress {
			w.still, w.tick, w.retried = 0, minTick, false
			continue
		}
		if w.jump() {
			w.still = 0
		} else if w.still++; w.still == stillTurns {
			w.fail("progress", "", "stuck, nothing is due: %s", w.outstanding())
		} else {
			w.wake()
		}
	}
}

// jump advances time to the next event. It returns false if none is pending.
func (w *world) jump() bool {
	next := w.eventQueue.next()
	for _, l := range w.links {
		if at, pending := l.Next(); pending {
			next = min(next, at)
		}
	}
	for _, p := range w.control {
		next = min(next, p.next())
	}
	for _, h := range w.hosts {
		next = min(next, max(h.nextPoll, h.paused))
		for _, t := range h.transports {
			if t != nil {
				next = min(next, t.next(w.now))
			}
		}
	}
	if at := w.now + int64(w.tick); w.plan.Failover && next > at {
		next = at
		w.tick = min(2*w.tick, maxTick)
		w.wake()
	}
	if next-w.now > longJump {
		if w.retried = !w.retried && w.unblock(); w.retried {
			return true // A retried post may have an effect before the next event.
		}
	}
	if next == never {
		return false
	}
	w.now = max(next, w.now+int64(w.plan.Quantum))
	if w.now > w.limit() {
		w.fail("progress", "", "not done %v after the last fault ended: %s", time.Duration(w.now-w.healed), w.outstanding())
	}
	return true
}

// unblock makes ends that wait after a refusal retry their post. It reports whether any was waiting.
func (w *world) unblock() (any bool) {
	for _, e := range w.ends {
		if e.blocked > 0 {
			e.blocked, any = 0, true
			e.host.wake()
		}
	}
	return any
}

// wake makes every host poll soon.
func (w *world) wake() {
	for _, h := range w.hosts {
		h.wake()
	}
}

func (h *host) wake() {
	if h.nextPoll != never {
		return
	}
	h.nextPoll = h.w.now
	if polls := int64(h.w.plan.Work.Polls); polls > 0 {
		h.nextPoll += h.w.rng.Int64N(polls)
	}
}

// awake reports whether a host polls now.
func (h *host) awake() bool {
	if h.w.now < h.nextPoll || h.w.now < h.paused {
		return false
	}
	h.nextPoll = never
	return true
}

// advance starts the next phase once the current one is done, and reports whether it did.
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
	w.wake() // Posts may have completed at once.
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

// idle reports whether an application has nothing left to post.
func (e *end) idle() bool { return len(e.backlog) == 0 && (e.budget == 0 || e.failed) }
