package sim

import (
	"ibverbx"
	"ibverbx/verbs"
)

// completed passes a completion to the checkers.
func (h *host) completed(wc *ibverbx.WC) {
	w := h.w
	if w.failed() {
		return
	}
	e := h.byQP[wc.QP]
	if e == nil || e.crashed {
		w.fail("completions", "", "host %d: completion of an unknown or crashed VirtualQP", h.index)
		return
	}
	w.trace.completion(e, wc)
	e.blocked = 0
	if wc.WRID&recvID != 0 {
		e.received(wc)
		return
	}
	e.checkOrder(wc)
	if w.failed() {
		return
	}
	for e.sends[e.head].id != wc.WRID {
		e.finish(e.sends[e.head], verbs.StatusSuccess)
		e.head++
	}
	r := e.sends[e.head]
	e.head++
	e.checkStatus(r, wc)
	e.checkDeadline(r)
	e.finish(r, wc.Status)
}

// finish completes a request. After a success its effect must be visible.
func (e *end) finish(r *request, status verbs.Status) {
	r.done, r.status = true, status
	if status == verbs.StatusSuccess {
		e.checkEffect(r)
		e.checkLate(r)
		if e.index%2 == 0 && e.w.phase < phaseCapacity && r != e.barrier {
			e.w.meter.count(e.w.now, r)
		}
	}
	if r == e.barrier {
		e.ended = true
	}
	e.settle(r)
	e.unpin(r)
}

// unpin releases the WRITE whose bytes a READ fetches.
func (e *end) unpin(r *request) {
	if r.pin != nil {
		r.pin.pinned = false
		e.settle(r.pin)
	}
}

// settle releases the local bytes of a completed request, and the range that it wrote once no checker needs it. After an error the contents
// of that range are unknown, so it is not released.
func (e *end) settle(r *request) {
	if !r.done {
		return
	}
	if r.local != nil {
		r.local.end()
		r.local = nil
	}
	if r.remote == nil || r.status != verbs.StatusSuccess {
		return
	}
	r.remote.allow = 0
	r.remote.known, r.remote.content = true, r.content
	if (r.imm() && !r.notified && !e.lost()) || r.pinned {
		return
	}
	r.remote.end()
	r.remote = nil
}

// lost reports whether notifications may be lost.
func (e *end) lost() bool { return e.failed || e.peer.failed }

// received handles the completion of a receive.
func (e *end) received(wc *ibverbx.WC) {
	kind := kindNotify
	if wc.WRID&dataID != 0 {
		kind = kindData
	}
	r := e.checkReceive(kind, wc)
	if r == nil {
		return
	}
	if wc.Status != verbs.StatusSuccess {
		e.checkFailed(wc.Status, "a receive")
	} else {
		e.checkMessage(kind, r, wc)
	}
	if r.span != nil {
		r.span.end()
		r.span = nil
	}
}

// takeEvents handles the events of the engine, and reports whether any was pending.
func (h *host) takeEvents() (any bool) {
	for {
		n := h.cq.Events(h.events)
		for i := range h.events[:n] {
			ev := &h.events[i]
			e := h.byQP[ev.QP]
			if e == nil || e.crashed {
				h.w.fail("first error", "", "host %d: event %s of an unknown or crashed VirtualQP", h.index, ev.Kind)
				return true
			}
			h.w.trace.event(e, ev)
			if ev.Kind == ibverbx.EventFailed {
				e.checkFailure(ev)
			}
		}
		if n == 0 {
			break
		}
		any = true
	}
	for _, e := range h.ends {
		e.checkErr()
	}
	return any
}
