package ibverbx

import (
	"math"
	"time"
)

// watchdog watches the oldest request that has not ended. It finds out whether the request has
// missed its deadline, and when to ask the peer whether it is still there. With Config.Control only.
type watchdog struct {
	setup *setup
	time  *callClock

	probing bool // the watchdog has seen an incomplete request
	// probeSeq is the oldest incomplete request when the watchdog last looked; valid while probing.
	probeSeq uint32
	probeAt  int64 // when to ask the peer for a sign of life; valid while probing

	late      bool     // a deadline has passed
	lateSince int64    // when the watchdog first saw that; valid while late
	lateAt    barriers // the barriers of the rails, set at lateSince; valid while late
}

const (
	// probeTime is how long the oldest request waits before the peer is asked whether it is still
	// the one that was connected, and the interval between questions after that.
	probeTime = int64(500 * time.Millisecond)
	// lateGrace is how long after a missed deadline the VirtualQP ends although there may be
	// completions that were not polled.
	lateGrace = int64(time.Second)
)

// deadline returns when a request that is posted now must have ended. A Config.Deadline beyond the
// end of the clock means never.
func (w *watchdog) deadline() int64 {
	now := w.time.now
	return now + min(int64(w.setup.cfg.Deadline), math.MaxInt64-1-max(now, 0))
}

// silent reports whether it is time to ask the peer for a sign of life. waiting says that there is
// an incomplete request, and oldest is its number. Lanes need not notice that a peer is gone: a
// request may wait for something that only the peer can do, with nothing in flight.
func (w *watchdog) silent(oldest uint32, waiting bool) bool {
	if !waiting || !w.probing || oldest != w.probeSeq {
		w.probing, w.probeSeq, w.probeAt = waiting, oldest, w.time.now+probeTime
		return false
	}
	if w.time.now < w.probeAt {
		return false
	}
	w.probeAt = w.time.now + probeTime
	return true
}

// expired reports whether the oldest request has missed its deadline. A completion that is still in
// a CQ, or was not taken by the user, is in time. So the CQs are emptied first.
func (w *watchdog) expired(deadline int64) bool {
	now := w.time.now
	if now <= deadline {
		w.late = false
		return false
	}
	cq := w.setup.cq
	if !w.late {
		w.late, w.lateAt, w.lateSince = true, cq.barriers(), now
	}
	return cq.passedAll(&w.lateAt) || now > w.lateSince+lateGrace
}

// due is when the watchdog wants to look again at a request with this deadline.
func (w *watchdog) due(deadline int64) int64 {
	if w.probing {
		return min(deadline+1, max(w.probeAt, w.time.now+1))
	}
	return min(deadline+1, w.time.now+probeTime)
}
