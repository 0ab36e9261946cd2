package sim

// This file holds: when all is done everything can be closed, and nothing stands on
// anything any more: no QP, CQ, SRQ, region or domain is left, and no range of memory is
// still taken by a request that has ended.

// checkLeaks looks at the zones of an end that works.
func (e *end) checkLeaks() {
	if e.excused() || e.peer.excused() || e.w.failure != nil {
		return
	}
	for _, z := range []*zone{e.out, e.in} {
		if n := len(z.live) - z.liveHead; n > 0 {
			e.fail("leaks", "%d ranges are still taken, the oldest by request %d of %s", n, z.live[z.liveHead].id, z.live[z.liveHead].label)
		}
	}
}

// verdict checks what holds when everything has ended, and closes the world.
func (w *world) verdict() {
	w.lastLook()
	if w.failure == nil {
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
		w.fail("leaks", "", "not everything could be closed: %v", err)
	}
}

// lastLook lets hosts take what is left for them: one whose peer has failed need not have
// seen that its own receives were flushed.
func (w *world) lastLook() {
	for range stillTurns {
		progress := false
		for _, h := range w.hosts {
			if w.failure == nil && h.turn() {
				progress = true
			}
		}
		if !progress {
			return
		}
	}
}

// checkExpectation holds what the scenario itself wants.
func (w *world) checkExpectation() {
	switch w.plan.Expect {
	case ExpectSuccess:
		if w.stats.failedQPs > 0 {
			w.fail("expectation", "", "%d VirtualQPs failed, the scenario wants none to", w.stats.failedQPs)
		}
	case ExpectFailure:
		if w.stats.failedQPs == 0 {
			w.fail("expectation", "", "no VirtualQP failed, the scenario wants one to")
		}
	case ExpectContract:
	}
}
