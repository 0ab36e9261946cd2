package ibverbx

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"slices"
	"time"

	"ibverbx/verbs"
)

// spins is how often Wait polls before it sleeps: waking up costs more than a few hundred nanoseconds of
// polling.
const spins = 32

// Wait polls until there is at least one completion. It polls for a short while and then sleeps on
// CQConfig.Waker until a rail has a completion. n is 0 only with an error, or if dst is empty. The error is
// ctx.Err() when ctx ends, and verbs.ErrNotSupported without a Waker. If a VirtualQP fails with nothing
// outstanding, no completion shows it. Then Wait returns its error (VirtualQP.Err), once.
func (c *VirtualCQ) Wait(ctx context.Context, dst []WC) (n int, err error) {
	if c.waker == nil {
		return 0, fmt.Errorf("wait: %w: the virtual CQ has no Waker", verbs.ErrNotSupported)
	}
	for len(dst) > 0 {
		for range spins {
			if n, err = c.Poll(dst); n > 0 || err != nil {
				return n, err
			}
		}
		for rail, cq := range c.cqs {
			if err := cq.Arm(false); err != nil {
				return 0, fmt.Errorf("wait: rail %d (%s): %w", rail, c.rails.rails[rail].name, err)
			}
		}
		// A completion between the last poll and Arm does not wake.
		if n, err = c.Poll(dst); n > 0 || err != nil {
			return n, err
		}
		if q := c.failedIdle(); q != nil {
			q.failover.shown = true
			return 0, fmt.Errorf("wait: %w", q.failover.err)
		}
		if len(c.touched) > 0 {
			// A NIC refused something, and no completion need come when it has room.
			runtime.Gosched()
			if err := ctx.Err(); err != nil {
				return 0, err
			}
			continue
		}
		if err := c.sleep(ctx); err != nil {
			return 0, err
		}
	}
	return 0, nil
}

// failedIdle returns a VirtualQP that has failed, has nothing outstanding, and whose failure was not shown to
// the program. It returns nil if there is none.
func (c *VirtualCQ) failedIdle() *VirtualQP {
	c.failed = slices.DeleteFunc(c.failed, func(q *VirtualQP) bool { return q.failover.shown })
	for _, q := range c.failed {
		if !q.outstanding() {
			return q
		}
	}
	return nil
}

// Bounds of Wait's sleep while a VirtualQP has something to do at a time.
const (
	busySleep = time.Millisecond      // longest sleep while a VirtualQP is restless
	minSleep  = 20 * time.Microsecond // what a timer costs
)

// sleep waits for the Waker, until a VirtualQP must be driven at most.
func (c *VirtualCQ) sleep(ctx context.Context) error {
	r := &c.ready
	due, longest := r.due(), time.Duration(math.MaxInt64)
	var first *VirtualQP
	switch {
	case len(r.qps) > 0:
		first, longest = r.qps[0], busySleep
	case r.timers.Len() > 0:
		first = r.timers.Front()
	default:
		return c.waker.Wait(ctx)
	}
	limit := min(longest, max(time.Duration(due-first.setup.cfg.Now()), minSleep))
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := c.waker.Wait(bounded); err != nil && bounded.Err() == nil {
		return err
	}
	return ctx.Err()
}

// Serve drives the virtual CQ of a side whose application only lends its memory. It polls and sleeps until
// ctx ends, and passes completions to each, if that is not nil. It returns ctx.Err() or the first error
// of Wait, and may be called again.
func (c *VirtualCQ) Serve(ctx context.Context, each func(WC)) error {
	wcs := make([]WC, pollBatch)
	for {
		n, err := c.Wait(ctx, wcs)
		if err != nil {
			return err
		}
		if each != nil {
			for _, wc := range wcs[:n] {
				each(wc)
			}
		}
	}
}

// Due is the time, by Config.Now, by which Poll wants to be called although nothing need have come:
// for the next step of a lane, or a deadline. It is math.MaxInt64 if there is no such time. Due is
// for callers with an event loop of their own, which must also poll when the CQ of a rail or a
// Control has something. Wait does all that.
func (c *VirtualCQ) Due() int64 { return c.ready.due() }

// requestDue is when the VirtualQP wants to look at its oldest request; math.MaxInt64 if there is none.
func (f *failover) requestDue() int64 {
	if seq, ok := f.send.sends.oldest(); ok && f.state == stateConnected {
		return f.watchdog.due(f.send.sends.slot(seq).deadline)
	}
	return math.MaxInt64
}

// due is when the VirtualQP wants to be driven next.
func (f *failover) due() int64 {
	due, now := f.requestDue(), f.time.now
	if f.state != stateConnected || (f.out == 0 && !f.away) {
		return due
	}
	for _, l := range f.setup.all {
		v := &l.life
		switch v.state {
		case laneUp:
			if l.rail != v.home {
				due = min(due, max(v.since, now)+backoffMax/8)
			}
		case laneDying:
			due = min(due, now+driveBusy) // polls that find nothing show that it is drained
		case laneGone, laneIdle, laneOffered:
			if v.due > now {
				due = min(due, v.due)
			} else {
				due = min(due, now+resendTime) // it waits for a message of the peer
			}
		case laneProbing:
		}
	}
	return due
}
