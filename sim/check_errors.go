package sim

import (
	"errors"
	"slices"

	"ibverbx"
	"ibverbx/verbs"
)

// This file holds: a VirtualQP fails only if it has reason to; the first error wins and is
// visible at once; what was outstanding then is flushed; nothing that was posted afterwards
// succeeds.

// excused reports whether a fault gave the end reason to fail.
func (e *end) excused() bool { return e.mayFail }

// checkFailure takes the event of a failure.
func (e *end) checkFailure(ev *ibverbx.Event) {
	if e.w.plan.Failover && ev.Err != nil {
		e.excuseFailover(ev.Err)
	}
	if e.overflowed(ev.Rail) {
		e.mayFail, e.peer.mayFail = true, true
		e.reasons++
		e.peer.reasons++
	}
	switch {
	case e.failed:
		e.fail("first error", "the VirtualQP failed a second time: %v", ev.Err)
	case ev.Err == nil || e.qp.Err() == nil:
		e.fail("first error", "the VirtualQP failed without an error")
	case !e.excused():
		e.fail("first error", "the VirtualQP failed, and nothing gave it reason to: %v", ev.Err)
	}
	e.checkGone(ev.Err)
	e.failed, e.err = true, ev.Err
	e.w.stats.failedQPs++
	for _, other := range []*end{e, e.peer} {
		for _, r := range other.sends {
			other.settle(r) // nobody waits for the peer to be told any more
		}
	}
}

// overflowed reports whether a switch has lost packets of the connection on a rail. RC knows
// nothing of congestion: senders that go back together overrun a short queue again and
// again, until one of them gives up.
func (e *end) overflowed(rail int) bool {
	if e.w.plan.Failover {
		return false // lanes come back
	}
	a, b := e.host.nics[rail], e.peer.host.nics[rail]
	return e.w.links[rail].Stats(a, b).Overflow+e.w.links[rail].Stats(b, a).Overflow > 0
}

// checkErr wants the error to be there from its event on, and to stay as it is.
func (e *end) checkErr() {
	if e.w.failure != nil {
		return
	}
	if err := e.qp.Err(); !e.failed && err != nil {
		e.fail("first error", "Err = %v, and no event has said so", err)
	} else if e.failed && (err == nil || !errors.Is(err, e.err)) {
		e.fail("first error", "Err = %v, and the event said %v", err, e.err)
	}
}

// checkError looks at the completion of a request that failed.
func (e *end) checkError(r *request, wc *ibverbx.WC) {
	if e.doubtful(r) {
		return
	}
	e.checkFailed(wc.Status, r.String())
	switch {
	case wc.Status == verbs.StatusRemAccessErr && !r.bad:
		e.fail("first error", "%v failed with %s, and its key is valid", r, wc.Status)
	case r.bad && !e.otherReason() && !e.w.rightful(wc.Status):
		e.fail("first error", "%v failed with %s, want %s", r, wc.Status, verbs.StatusRemAccessErr)
	case r.late && wc.Status != verbs.StatusWRFlushErr && !e.straight():
		e.fail("first error", "%v was posted after the failure and ended with %s", r, wc.Status)
	}
}

// rightful reports whether a request with a wrong key may end so: the peer says what is
// wrong, once, and is silent from then on. If that is lost the requester gives up.
func (w *world) rightful(status verbs.Status) bool {
	switch status {
	case verbs.StatusRemAccessErr, verbs.StatusWRFlushErr:
		return true
	case verbs.StatusRetryExcErr:
		return w.outage > 0 || slices.ContainsFunc(w.plan.Rails, func(r RailPlan) bool {
			return r.Impairment.Loss > 0 || r.Impairment.Corrupt > 0
		})
	default:
		return false
	}
}

// otherReason reports whether something beside a wrong key gave the end reason to fail.
func (e *end) otherReason() bool { return e.reasons > 0 || e.bereft }

// checkFailed wants a failed completion to come from a VirtualQP that says that it failed.
func (e *end) checkFailed(status verbs.Status, what string) {
	if e.qp.Err() == nil {
		e.fail("first error", "%s failed with %s, and Err is nil", what, status)
	}
}

// checkLate wants nothing to succeed that was posted after the failure.
func (e *end) checkLate(r *request) {
	if r.late && r.status == verbs.StatusSuccess {
		e.fail("first error", "%v was posted after the failure and succeeded", r)
	}
}

// checkPollError takes an error of Poll.
func (h *host) checkPollError(err error) {
	if h.cqFailed {
		return
	}
	for _, e := range h.ends {
		if e.excused() {
			return
		}
	}
	h.w.fail("first error", "", "host %d: poll: %v", h.index, err)
}
