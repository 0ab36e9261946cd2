package sim

import (
	"ibverbx"
	"ibverbx/verbs"
)

// completed takes a completion of the engine and puts it through the checkers.
func (h *host) completed(wc *ibverbx.WC) {
	w := h.w
	if w.failure != nil {
		return
	}
	e := h.byQP[wc.QP]
	if e == nil || e.crashed {
		w.fail("completions", "", "host %d: a completion of a VirtualQP that is not there", h.index)
		return
	}
	w.trace.completion(e, wc)
	e.blocked = 0
	if wc.WRID&recvID != 0 {
		e.received(wc)
		return
	}
	e.checkOrder(wc)
	if w.failure != nil {
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

// finish ends a request: in success its effect must be there.
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
	if r.pin != nil {
		r.pin.pinned = false
		e.settle(r.pin)
	}
}

// settle gives back what a request does not need any more: its local bytes when it has
// ended, and what it wrote when nobody will look at it again. After an error the state of
// the peer's memory is not known, and the range stays taken.
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
	if (r.imm() && !r.told && !e.lost()) || r.pinned {
		return
	}
	r.remote.end()
	r.remote = nil
}

// lost reports whether the peer may never be told of what was sent.
func (e *end) lost() bool { return e.failed || e.peer.failed }

// received takes the completion of a receive.
func (e *end) received(wc *ibverbx.WC) {
	kind := kindNotify
	if wc.WRID&dataID != 0 {
		kind = kindData
	}
	r := e.checkReceive(kind, wc)
	if r == nil {
		return
	}
	e.receives[kind].head++
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

// takeEvents takes what the engine tells beside completions.
func (h *host) takeEvents() {
	for {
		n := h.cq.Events(h.events)
		for i := range h.events[:n] {
			ev := &h.events[i]
			e := h.byQP[ev.QP]
			if e == nil || e.crashed {
				h.w.fail("first error", "", "host %d: event %s of a VirtualQP that is not there", h.index, ev.Kind)
				return
			}
			h.w.trace.event(e, ev)
			if ev.Kind == ibverbx.EventFailed {
				e.checkFailure(ev)
			}
		}
		if n == 0 {
			break
		}
	}
	for _, e := range h.ends {
		e.checkErr()
	}
}
