package sim

import "slices"

// This file checks that at the end everything can be closed, so that no QP, CQ, SRQ, region or
// protection domain is left, and that no range of memory is taken by a request that has ended.

// checkLeaks checks the zones of an end that has not failed.
func (e *end) checkLeaks() {
	if e.mayFail || e.peer.mayFail || e.w.failed() {
		return
	}
	for _, z := range []*zone{e.out, e.in} {
		if n := len(z.live) - z.liveHead; n > 0 {
			e.fail("leaks", "%d ranges are not released, the oldest belongs to request %d of %s", n, z.live[z.liveHead].id, z.live[z.liveHead].label)
		}
	}
}

// verdict runs the checks of a world that has ended, and closes it.
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

// lastLook lets hosts poll until nothing is left. A host whose peer has failed may not have seen yet
// that its own receives were flushed.
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

// checkExpectation checks what the scenario expects.
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
