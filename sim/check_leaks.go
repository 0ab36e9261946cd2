package sim

import "slices"

// This file checks that everything can be closed at the end, which fails if a QP, CQ, SRQ, region or protection domain leaks, and that
// completed requests have released their memory.

// checkLeaks checks the memory of an end that has not failed.
func (e *end) checkLeaks() {
	if e.mayFail || e.peer.mayFail || e.w.failed() {
		return
	}
	for _, z := range []*ringAllocator{e.out, e.in} {
		if n := len(z.live) - z.liveHead; n > 0 {
			e.fail("leaks", "%d ranges are not released, the oldest belongs to request %d of %s", n, z.live[z.liveHead].id, z.live[z.liveHead].label)
		}
	}
}

// verdict runs the final checks of a world, and closes it.
func (w *world) verdict() {
	w.lastLook()
	if !w.failed() {
		w.checkCounters()
		for _, e := range w.ends {
			e.checkStats()
			e.checkLeaks()
		}
		for _, h := range w.hosts {
			h.checkCQ()
		}
		w.checkExpectation()
		w.checkGoodput()
	}
	if err := w.close(); err != nil {
		w.fail("leaks", "", "close: %v", err)
	}
}

// lastLook polls all hosts until they are idle. A host whose peer has failed may still have to poll its flushed receives.
func (w *world) lastLook() {
	for range stillTurns {
		progress := false
		for _, h := range w.hosts {
			if !w.failed() && h.turn() {
				progress = true
			}
		}
		if !progress {
			return
		}
	}
}

// checkExpectation compares the outcome with the scenario's expectation.
func (w *world) checkExpectation() {
	switch w.plan.Expect {
	case ExpectSuccess:
		if w.report.FailedQPs > 0 {
			w.fail("expectation", "", "%d VirtualQPs failed, but the scenario expects success", w.report.FailedQPs)
		}
	case ExpectFailure:
		mayFail := func(e *end) bool { return e.mayFail && e.worked }
		switch {
		case w.report.FailedQPs > 0:
		case !slices.ContainsFunc(w.ends, mayFail):
			w.fail("world", "", "the scenario expects a failure, but no fault can end a VirtualQP that has requests")
		default:
			w.fail("expectation", "", "no VirtualQP failed, but the scenario expects a failure")
		}
	case ExpectContract:
	}
}
