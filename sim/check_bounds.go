package sim

import (
	"ibverbx"
	"ibverbx/internal/ring"
)

// This file checks that queues have exactly the configured depth, and that their slots are freed.

// sendDepth is the maximum number of outstanding requests of a VirtualQP.
func (e *end) sendDepth() int {
	if e.straight() {
		return e.plan.LaneDepth
	}
	return ring.CeilPow2(e.plan.SendDepth)
}

// checkCapacity fills the queues of an end that has not failed. They are empty, so they must accept their configured depth.
func (e *end) checkCapacity() {
	if e.crashed || e.qp.Err() != nil || e.mayFail || (e.straight() && e.refused) {
		return // A pending refusal would reach the application.
	}
	n := e.sendDepth()
	last := e.last(spareEnd)
	for range n - 1 {
		r := &request{id: uint64(len(e.sends) + len(e.backlog)), length: 8, wr: last.wr}
		r.wr.WRID, r.wr.Flags = r.id, 0
		e.backlog = append(e.backlog, r)
	}
	last.id = uint64(len(e.sends) + len(e.backlog))
	last.wr.WRID = last.id
	e.backlog = append(e.backlog, last)
	e.barrier, e.ended = last, false
	e.post()
	if left := len(e.backlog); left > 0 {
		e.fail("bounds", "an idle VirtualQP took %d of %d requests", n-left, n)
	}
	if e.straight() {
		return
	}
	for q := &e.receives[kindNotify]; ; {
		if !e.postRecv(kindNotify) {
			if q.waiting() != e.plan.RecvDepth {
				e.fail("bounds", "the VirtualQP holds %d notification receives, want %d", q.waiting(), e.plan.RecvDepth)
			}
			return
		}
	}
}

// checkStats checks the counters of the VirtualQP.
func (e *end) checkStats() {
	if e.w.failed() || e.crashed {
		return
	}
	s := e.qp.Stats()
	// A VirtualQP that passes requests through does not notice the completion of unsignaled ones.
	if s.HighWater > e.sendDepth() && !e.failed && !e.straight() {
		e.fail("bounds", "%d requests were outstanding, the queue holds %d", s.HighWater, e.sendDepth())
	}
	for i := range s.Lanes {
		if l := &s.Lanes[i]; l.HighWater > e.plan.LaneDepth && !e.failed {
			e.fail("bounds", "lane %d had %d requests outstanding, its depth is %d", l.Lane, l.HighWater, e.plan.LaneDepth)
		}
	}
	if want := uint64(len(e.sends)); s.Posted != want {
		e.fail("leaks", "Stats counts %d requests, %d were posted", s.Posted, want)
	} else if !e.straight() && e.head == len(e.sends) && s.Completed != want {
		e.fail("leaks", "Stats counts %d completed requests, want %d", s.Completed, want)
	}
	if !e.w.plan.Failover && s.Stale != 0 {
		e.fail("leaks", "%d completions belong to no request in flight", s.Stale)
	}
}

// checkCQ checks the counters of the VirtualCQ, and that it is empty.
func (h *host) checkCQ() {
	s := h.cq.Stats()
	if s.Unknown != 0 || s.EventsLost != 0 {
		h.w.fail("leaks", "", "host %d: %d completions of unknown QPs, %d events lost", h.index, s.Unknown, s.EventsLost)
	}
	for {
		var wcs [1]ibverbx.WC
		n, err := h.cq.Poll(wcs[:])
		if n == 1 && wcs[0].QP.Err() != nil && wcs[0].Err() != nil {
			continue // The VirtualQP has just noticed the failure of its peer, and flushes.
		}
		if n != 0 || (err != nil && !h.cqFailed) {
			h.w.fail("completions", "", "host %d: Poll = %d, %v after the last completion", h.index, n, err)
		}
		return
	}
}
