package sim

import (
	"errors"
	"slices"
	"strings"

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
	if ev.Err != nil && (e.overflowed(ev) || e.overfed(ev.Err)) {
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

// overflowed reports whether a VirtualQP may give up because switches have lost packets of
// its connection on a rail. RC knows nothing of congestion: senders that go back together
// overrun a short queue again and again, until one of them has tried so often in vain that it
// ends in RETRY_EXC. Each time at least one packet was lost; only with failover lanes come
// back.
func (e *end) overflowed(ev *ibverbx.Event) bool {
	if e.w.plan.Failover || !strings.Contains(ev.Err.Error(), verbs.StatusRetryExcErr.String()) {
		return false
	}
	a, b := e.host.nics[ev.Rail], e.peer.host.nics[ev.Rail]
	link := e.w.links[ev.Rail]
	return link.Stats(a, b).Overflow+link.Stats(b, a).Overflow >= givesUpAfter
}

// overfed reports whether a VirtualQP may fail because it was brought more messages than it
// can hold. Nothing holds back a peer whose receives are shared, while the application posts
// none or does not poll; without that, or with receives of its own, it is no excuse. Others
// on the same queue are not excused.
func (e *end) overfed(err error) bool {
	return e.w.plan.Shared > 0 && strings.Contains(err.Error(), "more messages than receives were posted for") &&
		slices.ContainsFunc(e.w.struck, func(s struck) bool {
			starved := s.fault.Kind == FaultStarve && e.w.victim(s.fault) == e
			return starved || (s.fault.Kind == FaultPause && e.host == e.w.hosts[s.fault.From%len(e.w.hosts)])
		})
}

// givesUpAfter is how often RC sends a packet before it gives up: once, and the retries.
const givesUpAfter = verbs.DefaultRetryCount + 1

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
	if e.doubtful(r, wc.Status) {
		return
	}
	e.checkFailed(wc.Status, r.String())
	switch {
	case wc.Status == verbs.StatusRemAccessErr && !r.bad:
		e.fail("first error", "%v failed with %s, and its key is valid", r, wc.Status)
	case r.bad && !e.otherReason() && !e.rightful(wc.Status):
		e.fail("first error", "%v failed with %s, want %s", r, wc.Status, verbs.StatusRemAccessErr)
	case r.late && wc.Status != verbs.StatusWRFlushErr && !e.straight():
		e.fail("first error", "%v was posted after the failure and ended with %s", r, wc.Status)
	}
}

// rightful reports whether a request with a wrong key may end so: the peer says what is
// wrong, once, and is silent from then on. Only if a packet from the peer was lost can that
// have been it, and the requester gives up; with failover it asks again over another lane. A
// peer that has failed by itself does not answer at all.
func (e *end) rightful(status verbs.Status) bool {
	switch status {
	case verbs.StatusRemAccessErr, verbs.StatusWRFlushErr:
		return true
	case verbs.StatusRetryExcErr:
		return !e.w.plan.Failover && (e.unheard() || e.peer.failed)
	default:
		return false
	}
}

// unheard reports whether a packet of the peer was lost, or kept back for a while.
func (e *end) unheard() bool {
	for i, link := range e.w.links {
		from, to := e.peer.host.nics[i], e.host.nics[i]
		s := link.Stats(from, to)
		if s.Lost+s.Corrupted+s.Cut+s.Overflow+from.Stats().PortDownDrops+to.Stats().PortDownDrops > 0 {
			return true
		}
	}
	return slices.ContainsFunc(e.w.struck, func(s struck) bool { return s.fault.Kind == FaultHold && e.w.meets(s.fault, e) })
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
