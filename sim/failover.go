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
// may have happened or not, unless it is to be left up then; the end of its peer; or a
// deadline, if something that it met has lasted as long.
func (e *end) excuseFailover(err error) {
	doubt := strings.Contains(err.Error(), "atomic is in doubt") && !e.w.plan.KeepAtomics &&
		slices.ContainsFunc(e.sends, func(r *request) bool { return r.atomic() && (!r.done || r.status != verbs.StatusSuccess) })
	long := errors.Is(err, ibverbx.ErrDeadline) && slices.ContainsFunc(e.w.struck, func(s struck) bool {
		return s.fault.outage() && s.fault.For >= deadline && e.w.meets(s.fault, e)
	})
	if doubt || long || (errors.Is(err, ibverbx.ErrPeerGone) && e.peer.failed) {
		e.mayFail, e.peer.mayFail = true, true
	}
}

// doubtful reports whether a request may fail although its VirtualQP has not: an atomic that
// may have happened or not.
func (e *end) doubtful(r *request, status verbs.Status) bool {
	if !r.atomic() || !e.mayDoubt() || status != verbs.StatusRetryExcErr {
		return false
	}
	if !r.shared {
		e.atomics[r.word].doubt(r)
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
