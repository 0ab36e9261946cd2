package sim

import (
	"errors"
	"slices"
	"strings"

	"ibverbx"
	"ibverbx/verbs"
)

// This file checks that a VirtualQP fails only for a reason, that its first error is visible at once
// and stays, that outstanding requests are flushed, and that no later request succeeds.

// checkFailure handles the event of a failure.
func (e *end) checkFailure(ev *ibverbx.Event) {
	if e.w.plan.Failover && ev.Err != nil {
		e.excuseFailover(ev.Err)
	}
	if ev.Err != nil && (e.queueOverflow(ev) || e.receiveOverflow(ev.Err)) {
		e.mayFailFor(1)
	}
	switch {
	case e.failed:
		e.fail("first error", "the VirtualQP failed a second time: %v", ev.Err)
	case ev.Err == nil || e.qp.Err() == nil:
		e.fail("first error", "the VirtualQP failed without an error")
	case !e.mayFail:
		e.fail("first error", "the VirtualQP failed without a reason: %v", ev.Err)
	}
	e.checkGone(ev.Err)
	e.failed, e.err = true, ev.Err
	e.w.report.FailedQPs++
	for _, other := range []*end{e, e.peer} {
		for _, r := range other.sends {
			other.settle(r) // Notifications are no longer expected.
		}
	}
}

// queueOverflow reports whether a VirtualQP may fail because switches have dropped packets of its
// connection on a rail. RC lacks congestion control: senders that retransmit together can overrun a short queue until one fails with
// RETRY_EXC. Each attempt has lost at least one packet. With failover the lane is rebuilt.
func (e *end) queueOverflow(ev *ibverbx.Event) bool {
	if e.w.plan.Failover || ev.Rail < 0 || !strings.Contains(ev.Err.Error(), verbs.StatusRetryExcErr.String()) {
		return false
	}
	a, b := e.host.nics[ev.Rail], e.peer.host.nics[ev.Rail]
	link := e.w.links[ev.Rail]
	return link.Stats(a, b).Overflow+link.Stats(b, a).Overflow >= givesUpAfter
}

// receiveOverflow reports whether a VirtualQP may fail because it received more messages than it can hold.
// With shared receives, the peer keeps sending while the application posts no receives or does not poll. Other VirtualQPs on the same SRQ
// must not fail.
func (e *end) receiveOverflow(err error) bool {
	return e.w.plan.Shared > 0 && strings.Contains(err.Error(), "more messages than receives, by more than") &&
		slices.ContainsFunc(e.w.activeFaults, func(s activeFault) bool {
			starved := s.fault.Kind == FaultStarve && e.w.targetEnd(s.fault) == e
			return starved || (s.fault.Kind == FaultPause && e.host == e.w.hosts[s.fault.From%len(e.w.hosts)])
		})
}

// givesUpAfter is the number of times RC sends a packet before it fails.
const givesUpAfter = verbs.DefaultRetryCount + 1

// checkErr checks that Err returns the error of the event, from the event on.
func (e *end) checkErr() {
	if e.w.failed() {
		return
	}
	if err := e.qp.Err(); !e.failed && err != nil {
		e.fail("first error", "Err = %v, but there was no event", err)
	} else if e.failed && (err == nil || !errors.Is(err, e.err)) {
		e.fail("first error", "Err = %v, but the event had %v", err, e.err)
	}
}

// checkError checks the completion of a failed request.
func (e *end) checkError(r *request, wc *ibverbx.WC) {
	if e.inDoubt(r, wc) {
		return
	}
	e.checkFailed(wc.Status, r.String())
	switch {
	case wc.Status == verbs.StatusRemAccessErr && !r.bad:
		e.fail("first error", "%v failed with %s, but its key is valid", r, wc.Status)
	case r.bad && !e.otherReason() && !e.validBadKeyStatus(wc.Status):
		e.fail("first error", "%v failed with %s, want %s", r, wc.Status, verbs.StatusRemAccessErr)
	case r.late && wc.Status != verbs.StatusWRFlushErr && !e.straight():
		e.fail("first error", "%v was posted after the failure and ended with %s", r, wc.Status)
	}
}

// validBadKeyStatus reports whether a request with an invalid key may complete with a status. The peer sends one NAK. RETRY_EXC is valid
// only if a packet from the peer was lost, perhaps the NAK, or if the peer has failed. With failover the request is retried over another
// lane.
func (e *end) validBadKeyStatus(status verbs.Status) bool {
	switch status {
	case verbs.StatusRemAccessErr, verbs.StatusWRFlushErr:
		return true
	case verbs.StatusRetryExcErr:
		return !e.w.plan.Failover && (e.responseLost() || e.peer.failed)
	default:
		return false
	}
}

// responseLost reports whether a packet from the peer was lost or held.
func (e *end) responseLost() bool {
	for i, link := range e.w.links {
		from, to := e.peer.host.nics[i], e.host.nics[i]
		s := link.Stats(from, to)
		if s.Lost+s.Corrupted+s.Cut+s.Overflow+from.Stats().PortDownDrops+to.Stats().PortDownDrops > 0 {
			return true
		}
	}
	return slices.ContainsFunc(e.w.activeFaults, func(s activeFault) bool { return s.fault.Kind == FaultHold && e.w.affects(s.fault, e) })
}

// otherReason reports whether the end may fail for a reason other than an invalid key.
func (e *end) otherReason() bool { return e.reasons > 0 || e.anyCrashed }

// checkFailed checks that Err is set when a completion has an error.
func (e *end) checkFailed(status verbs.Status, what string) {
	if e.qp.Err() == nil {
		e.fail("first error", "%s failed with %s, but Err is nil", what, status)
	}
}

// checkLate checks that a request posted after the failure does not succeed.
func (e *end) checkLate(r *request) {
	if r.late && r.status == verbs.StatusSuccess {
		e.fail("first error", "%v was posted after the failure and succeeded", r)
	}
}

// checkPollError handles an error of Poll.
func (h *host) checkPollError(err error) {
	if h.cqFailed {
		return
	}
	for _, e := range h.ends {
		if e.mayFail {
			return
		}
	}
	h.w.fail("first error", "", "host %d: poll: %v", h.index, err)
}
