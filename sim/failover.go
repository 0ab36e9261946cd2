package sim

import (
	"errors"
	"slices"
	"strings"
	"time"

	"ibverbx"
	"ibverbx/verbs"
)

// deadline is what a request has with failover before it ends in an error.
const deadline = 60 * time.Second

// With failover hosts look although nothing is due, because the engine's own timers are seen
// by its polls alone: soon after something has happened, and then less and less often.
const (
	minTick = 500 * time.Microsecond
	maxTick = 10 * time.Millisecond
)

// failover gives a VirtualQP what it needs to survive the loss of lanes.
func (w *world) failover(e *end, cfg *ibverbx.Config) {
	cfg.Control = w.channelOf(e)
	if e.inherited != nil {
		cfg.Control = &heir{own: w.channelOf(e), old: w.channelOf(e.inherited)}
	}
	cfg.Deadline = deadline
	cfg.KeepAtomics = w.plan.KeepAtomics
}

// excuseFailover looks at what ended a VirtualQP that has a control channel: an atomic that
// may have happened or not, unless it is to be left up then; or the end of its peer.
func (e *end) excuseFailover(err error) {
	doubt := strings.Contains(err.Error(), "atomic is in doubt") && !e.w.plan.KeepAtomics &&
		slices.ContainsFunc(e.sends, func(r *request) bool { return r.atomic() && (!r.done || r.status != verbs.StatusSuccess) })
	if doubt || (errors.Is(err, ibverbx.ErrPeerGone) && e.peer.failed) {
		e.mayFail, e.peer.mayFail = true, true
	}
}

// doubtful reports whether a request may fail although its VirtualQP has not: an atomic that
// may have happened or not. Nothing is known of its counter from then on.
func (e *end) doubtful(r *request) bool {
	if !r.atomic() || !e.mayDoubt() {
		return false
	}
	if !r.shared {
		e.atomics[r.word].unknown = true
	}
	return true
}

// mayDoubt reports whether atomics can fail by themselves: then what comes after one says
// nothing of it.
func (e *end) mayDoubt() bool { return e.w.plan.Failover && e.w.plan.KeepAtomics }

// straight reports whether the VirtualQPs of a connection pass everything through. With
// failover they keep track of everything.
func (e *end) straight() bool { return e.conn.direct() && !e.w.plan.Failover }

// laneStats adds up how often lanes died, and what left over another one then.
func (w *world) laneStats() (deaths, replayed uint64) {
	for _, e := range w.ends {
		if e.qp == nil {
			continue // the world was not built
		}
		for _, l := range e.qp.Stats().Lanes {
			deaths += l.Deaths
			replayed += l.Replayed
		}
	}
	return deaths, replayed
}
