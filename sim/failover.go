package sim

import (
	"errors"
	"slices"
	"strings"
	"time"

	"ibverbx"
	"ibverbx/verbs"
)

// deadline is Config.Deadline of every VirtualQP with failover.
const deadline = 60 * time.Second

// With failover, idle hosts keep polling, because only polls run the timers of the engine. The interval grows from minTick to maxTick.
const (
	minTick = 500 * time.Microsecond
	maxTick = 10 * time.Millisecond
)

// failover configures a VirtualQP for failover.
func (w *world) failover(e *end, cfg *ibverbx.Config) {
	cfg.Control = w.channelOf(e)
	if e.inherited != nil {
		cfg.Control = &replacementChannel{own: w.channelOf(e), old: w.channelOf(e.inherited)}
	}
	cfg.Deadline = deadline
	cfg.KeepAtomics = w.plan.KeepAtomics
}

// excuseFailover decides whether a VirtualQP with failover may fail with err: because an atomic is in doubt (without KeepAtomics), because
// its peer has failed, or at a deadline if an outage lasted as long.
func (e *end) excuseFailover(err error) {
	doubt := strings.Contains(err.Error(), "atomic is in doubt") && !e.w.plan.KeepAtomics &&
		slices.ContainsFunc(e.sends, func(r *request) bool { return r.atomic() && (!r.done || r.status != verbs.StatusSuccess) })
	long := errors.Is(err, ibverbx.ErrDeadline) && slices.ContainsFunc(e.w.activeFaults, func(s activeFault) bool {
		return s.fault.Kind.uses(silences) && s.fault.For >= deadline && e.w.affects(s.fault, e)
	})
	if doubt || long || (errors.Is(err, ibverbx.ErrPeerGone) && e.peer.failed) {
		e.mayFailFor(0)
	}
}

// inDoubt reports whether a request is an atomic in doubt, which may fail alone. Its completion must have ErrAtomicInDoubt.
func (e *end) inDoubt(r *request, wc *ibverbx.WC) bool {
	if !r.atomic() || !e.mayDoubt() || !errors.Is(wc.Err(), ibverbx.ErrAtomicInDoubt) {
		return false
	}
	if !r.shared {
		e.atomics[r.word].doubt(r)
	}
	return true
}

// mayDoubt reports whether an atomic can fail without its VirtualQP. A later completion then does not prove that the atomic was executed.
func (e *end) mayDoubt() bool { return e.w.plan.Failover && e.w.plan.KeepAtomics }

// straight reports whether the VirtualQPs of a connection pass requests through to their only lane.
// With failover they never do.
func (e *end) straight() bool { return e.conn.Lanes == 1 && !e.w.plan.Failover }
