package sim

import (
	"errors"
	"time"

	"ibverbx"
	"ibverbx/verbs"
)

// This file checks that a VirtualQP fails within goneTime, with ErrPeerGone, once another process has replaced its peer, and that its
// packets cannot affect the new connection.

// goneTime limits that time while requests are outstanding. RC's retries last at most
// 0.54 s and draining 0.1 s. A Down is repeated every 0.1 s.
const goneTime = 2 * time.Second

// checkGone checks the error of a VirtualQP whose peer was replaced.
func (e *end) checkGone(err error) {
	if e.replaced == 0 || e.reasons > 0 || e.bad != nil {
		return // The peer was not replaced, or there is another reason to fail.
	}
	if errors.Is(err, ibverbx.ErrAtomicInDoubt) && !e.w.plan.KeepAtomics {
		return // The peer gave up a lane with an atomic on it before it crashed.
	}
	if !errors.Is(err, ibverbx.ErrPeerGone) {
		e.fail("restart", "the peer was replaced, but the VirtualQP failed with %v; want %v", err, ibverbx.ErrPeerGone)
		return
	}
	from := max(e.replaced, e.w.healed)
	// Time counts from the first signaled request that did not succeed. An unsignaled one may have.
	for _, r := range e.sends {
		if r.signaled() && (!r.done || r.status != verbs.StatusSuccess) {
			from = max(from, r.posted)
			break
		}
	}
	if took := time.Duration(e.w.now - from); took > goneTime {
		e.fail("restart", "the peer was replaced, and the VirtualQP took %v to fail; want at most %v", took, goneTime)
	}
}
