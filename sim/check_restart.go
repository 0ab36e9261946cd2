package sim

import (
	"errors"
	"time"

	"ibverbx"
	"ibverbx/verbs"
)

// This file holds: when another process answers in the place of a peer that crashed, the old
// VirtualQP ends soon, and says why. What it still sends is not mistaken for the new
// connection's, whose ends nothing excuses.

// goneTime is how long that may take once there is something to send: RC's retries last
// 0.54 s at the most, draining 0.1 s, and a Down is repeated every 0.1 s.
const goneTime = 2 * time.Second

// checkGone looks at the failure of a VirtualQP whose peer was replaced.
func (e *end) checkGone(err error) {
	if e.replaced == 0 || e.reasons > 0 || e.bad != nil {
		return // or it has failed for another reason
	}
	if errors.Is(err, ibverbx.ErrAtomicInDoubt) && !e.w.plan.KeepAtomics {
		return // the peer had taken its leave of a lane with an atomic on it before it crashed
	}
	if !errors.Is(err, ibverbx.ErrPeerGone) {
		e.fail("restart", "another process answers for the peer, and the VirtualQP ended with %v; want %v", err, ibverbx.ErrPeerGone)
		return
	}
	from := max(e.replaced, e.w.healed)
	// What has succeeded needs no peer any more; of an unsignaled request nobody knows whether
	// it has.
	for _, r := range e.sends {
		if r.signaled() && (!r.done || r.status != verbs.StatusSuccess) {
			from = max(from, r.posted)
			break
		}
	}
	if took := time.Duration(e.w.now - from); took > goneTime {
		e.fail("restart", "another process answers for the peer, and the VirtualQP ended %v after that could be known; want %v at the most", took, goneTime)
	}
}
