package ibverbx

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"ibverbx/verbs"
)

// spins is how often Wait polls before it goes to sleep: a completion that is about to
// come is worth a few hundred nanoseconds of looking.
const spins = 32

// Wait polls until there is at least one completion, or an event: then n is 0. It looks for a short while and then
// sleeps on the Waker of the CQConfig until a rail has news; without one it returns
// verbs.ErrNotSupported. It returns ctx.Err() when ctx ends.
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
		if c.news {
			c.news = false
			return 0, nil
		}
		for rail, cq := range c.cqs {
			if err := cq.Arm(false); err != nil {
				return 0, fmt.Errorf("wait: rail %d (%s): %w", rail, c.rails.rails[rail].name, err)
			}
		}
		// What came between the last poll and Arm woke nobody.
		if n, err = c.Poll(dst); n > 0 || err != nil {
			return n, err
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

// How long Wait sleeps at the most if there are VirtualQPs with a Control: while lanes are
// out of service, and otherwise, for Controls that wake nobody. What is due before that
// shortens it, but not below what a timer costs.
const (
	busySleep = time.Millisecond
	calmSleep = 50 * time.Millisecond
	minSleep  = 20 * time.Microsecond
)

// sleep waits for the Waker, and no longer than VirtualQPs can do without a poll.
func (c *VirtualCQ) sleep(ctx context.Context) error {
	if len(c.driven) == 0 {
		return c.waker.Wait(ctx)
	}
	limit := calmSleep
	for _, q := range c.driven {
		if q.out > 0 {
			limit = min(limit, busySleep)
		}
		limit = min(limit, max(time.Duration(q.due()-q.cfg.Now()), minSleep))
	}
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := c.waker.Wait(bounded); err != nil && bounded.Err() == nil {
		return err
	}
	return ctx.Err()
}

// Serve drives the virtual CQ of a side whose application only lends its memory: it polls
// and sleeps until ctx ends, and hands completions to each, if that is not nil. It returns
// ctx.Err() or the first error of the virtual CQ.
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
