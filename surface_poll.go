package ibverbx

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"time"

	"ibverbx/verbs"
)

const (
	// pollBatch is the number of physical completions polled at once.
	pollBatch = 64
	// pollTurns is the maximum number of batches per rail and Poll, so that a busy rail does not starve the others.
	pollTurns = 64
)

// Poll polls all rails and returns up to len(dst) completions, in posting order per VirtualQP.
// Completions that do not fit are kept for the next call. Poll never blocks. It returns an error only if
// n is 0, so an error never hides a completion: a NIC's error with the rail, or verbs.ErrNotFound for a
// completion of an unknown QP.
func (c *VirtualCQ) Poll(dst []WC) (n int, err error) {
	c.guard.Enter("ibverbx: Poll", misuse)
	if len(c.kept) > 0 {
		n = c.returnKept(dst)
	}
	if len(c.reportQueue) > 0 {
		n = c.report(dst, n)
	}
	rail := c.next
	for range c.cqs {
		for turn := 0; n < len(dst) && turn < pollTurns; turn++ { // inline: a call per rail costs 4 % of an empty poll
			want := min(pollBatch, len(dst)-n) // a completion of a passthrough needs an entry in dst
			got, err := c.cqs[rail].Poll(c.buf[:want])
			if err != nil {
				c.pollFailed(rail, err)
			}
			if got > 0 {
				n = c.process(rail, c.buf[:got], dst, n)
				n = c.report(dst, n)
			}
			if got < want {
				c.idle[rail]++
				break
			}
		}
		if rail++; rail >= len(c.cqs) {
			rail = 0
		}
	}
	if c.next++; c.next >= len(c.cqs) {
		c.next = 0
	}
	if c.watchesEvents {
		n = c.drive(dst, n)
	}
	if n == 0 && c.err != nil {
		err, c.err = c.err, nil
	}
	c.guard.Leave()
	return n, err
}

// PollOne is Poll for a single completion. ok is false if none is available.
func (c *VirtualCQ) PollOne() (wc WC, ok bool, err error) {
	var one [1]WC
	n, err := c.Poll(one[:])
	return one[0], n == 1, err
}

// CQ returns the physical CQ of a rail, for callers that poll it themselves and pass the completions to
// ProcessCompletions. NewQP may replace an unused CQ of the default depth. CQ returns
// verbs.ErrInvalid if the rail does not exist.
func (c *VirtualCQ) CQ(rail int) (verbs.CQ, error) {
	if rail < 0 || rail >= len(c.cqs) {
		return nil, fmt.Errorf("find CQ: %w", verbs.Invalidf("rail %d of %d", rail, len(c.cqs)))
	}
	return c.cqs[rail], nil
}

// ProcessCompletions is Poll for callers that poll a rail's physical CQ themselves. It consumes all of
// wcs and keeps completions that do not fit into dst for the next call. Call it with empty wcs when the
// CQ is empty: failover relies on that.
func (c *VirtualCQ) ProcessCompletions(rail int, wcs []verbs.WC, dst []WC) (n int, err error) {
	if rail < 0 || rail >= len(c.cqs) {
		return 0, fmt.Errorf("process completions: %w", verbs.Invalidf("rail %d of %d", rail, len(c.cqs)))
	}
	c.guard.Enter("ibverbx: ProcessCompletions", misuse)
	n = c.returnKept(dst)
	n = c.process(rail, wcs, dst, n)
	if len(wcs) == 0 {
		c.idle[rail]++
	}
	n = c.report(dst, n)
	if c.watchesEvents {
		n = c.drive(dst, n)
	}
	if n == 0 {
		err, c.err = c.err, nil
	}
	c.guard.Leave()
	return n, err
}

// pollFailed records that a rail's CQ cannot be polled. An overrun CQ is replaced if a VirtualQP has failover: its lanes
// are rebuilt or, after it has failed, its requests flushed.
func (c *VirtualCQ) pollFailed(rail int, err error) {
	err = fmt.Errorf("poll rail %d (%s): %w", rail, c.rails.rails[rail].name, err)
	hasFailover := func(q *VirtualQP) bool { return q.setup.cfg.Control != nil }
	if errors.Is(err, verbs.ErrCQOverrun) && slices.ContainsFunc(c.qps, hasFailover) {
		if again := c.renewCQ(rail); again == nil {
			c.railLost(rail, err)
			return
		}
	}
	if c.err == nil {
		c.err = err
	}
}

// railLost takes all lanes on a rail out of service whose CQ was replaced. A VirtualQP without failover fails, because
// completions are lost. So are those of a failed VirtualQP, whose requests on the rail are flushed.
func (c *VirtualCQ) railLost(rail int, cause error) {
	for _, q := range c.qps {
		f := &q.failover
		if f.recovers() {
			f.railDown(rail, cause)
			continue
		}
		for _, l := range q.setup.all {
			if int(l.rail) != rail {
				continue
			}
			f.fail(l, cause)
			f.abandon(l)
			if !q.setup.direct {
				f.flush()
			}
		}
	}
}

// returnKept returns kept completions.
func (c *VirtualCQ) returnKept(dst []WC) int {
	n := copy(dst, c.kept)
	if c.pool != nil {
		c.pool.deliver(dst[:n])
	}
	c.kept = append(c.kept[:0], c.kept[n:]...)
	return n
}

// process routes a rail's completions. dst has n entries; completions of passthroughs are appended to it.
func (c *VirtualCQ) process(rail int, wcs []verbs.WC, dst []WC, n int) int {
	c.stats.cqes.Add(uint64(len(wcs)))
	for len(wcs) > 0 {
		l := c.routes[rail].Find(wcs[0].QPN)
		if l != nil && !l.owner.setup.direct {
			c.queueReport(l.owner)
			if got := l.owner.recv.receivedRun(rail, wcs); got > 0 {
				wcs = wcs[got:]
				continue
			}
		}
		// Other completions arrive in runs from one lane.
		qpn, run := wcs[0].QPN, 1
		for run < len(wcs) && wcs[run].QPN == qpn {
			run++
		}
		switch {
		case l == nil:
			c.handleUnknown(rail, wcs[:run])
		case l.owner.setup.direct:
			n = c.reportPassthrough(l, wcs[:run], dst, n)
		default:
			for i := range wcs[:run] {
				l.owner.completed(l, &wcs[i])
			}
			l.counts.cqes.Add(uint64(run))
		}
		wcs = wcs[run:]
	}
	return n
}

// reportPassthrough returns a passthrough lane's completions. Completions that do not fit are kept.
func (c *VirtualCQ) reportPassthrough(l *lane, wcs []verbs.WC, dst []WC, n int) int {
	l.counts.cqes.Add(uint64(len(wcs)))
	k := min(len(wcs), len(dst)-n)
	l.owner.pass.report(wcs[:k], dst[n:])
	if c.pool != nil {
		c.pool.deliver(dst[n : n+k])
	}
	if wcs = wcs[k:]; len(wcs) > 0 {
		kept := len(c.kept)
		c.kept = append(c.kept, make([]WC, len(wcs))...)
		l.owner.pass.report(wcs, c.kept[kept:])
	}
	c.pool.feedLow(l)
	return n + k
}

// countStale counts a completion without a matching request in flight.
func (c *VirtualCQ) countStale(l *lane) {
	l.counts.stale.Add(1)
	c.stats.stale.Add(1)
}

// queueReport includes q in the next report.
func (c *VirtualCQ) queueReport(q *VirtualQP) {
	if !q.reportQueued {
		q.reportQueued = true
		c.reportQueue = append(c.reportQueue, q)
		q.clock.tick()
	}
}

// handleUnknown handles completions of an unknown QP. A receive from an SRQ, consumed by a lane closed since, is
// recycled.
func (c *VirtualCQ) handleUnknown(rail int, wcs []verbs.WC) {
	for i := range wcs {
		t := tag(wcs[i].WRID)
		if c.shared != nil && t == newTag(0, kindRecv, 0, t.entry()) && int(t.entry()) < c.shared.depth {
			c.stats.stale.Add(1)
			if err := c.shared.recycle(uint8(rail), t.entry()); err != nil && c.err == nil {
				c.err = err
			}
			continue
		}
		if slot, ok := c.pool.claim(uint8(rail), t); ok {
			c.stats.stale.Add(1)
			c.pool.restoreAndFeed(slot)
			continue
		}
		c.stats.unknown.Add(1)
		if c.err == nil {
			c.err = fmt.Errorf("poll rail %d (%s): %w: completion of QP %#06x, which is not registered",
				rail, c.rails.rails[rail].name, verbs.ErrNotFound, wcs[i].QPN)
		}
	}
}

// report lets the queued VirtualQPs dispatch and report. Busy ones stay in the queue, because a retry must not depend
// on another completion.
func (c *VirtualCQ) report(dst []WC, n int) int {
	keep := c.reportQueue[:0]
	for _, q := range c.reportQueue {
		q.send.dispatch()
		n += q.recv.report(dst[n:]) // receives first
		n += q.send.report(dst[n:])
		if q.busy() {
			keep = append(keep, q)
		} else {
			q.reportQueued = false
		}
	}
	c.reportQueue = keep
	return n
}

// spins is the number of polls before Wait sleeps: waking up costs more than a few hundred nanoseconds of polling.
const spins = 32

// Wait polls until at least one completion is available. It spins briefly and then sleeps on
// CQConfig.Waker. n is 0 only with an error or if dst is empty. The error is ctx.Err() if ctx is done
// first, verbs.ErrNotSupported without a Waker, or an error of Poll. If a VirtualQP fails without
// outstanding requests, so that no completion reports it, Wait returns its error (VirtualQP.Err) once.
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
		n, sleep, err := c.Arm(dst)
		if n > 0 || err != nil {
			return n, err
		}
		if q := c.failedIdle(); q != nil {
			q.failover.errShown = true
			return 0, fmt.Errorf("wait: %w", q.failover.err)
		}
		if sleep == 0 {
			runtime.Gosched()
			if err := ctx.Err(); err != nil {
				return 0, err
			}
			continue
		}
		if err := c.waker.Sleep(ctx, sleep); err != nil {
			return 0, err
		}
	}
	return 0, nil
}

// Arm prepares a sleep on CQConfig.Waker, for callers with their own event loop; Wait is such a loop. It
// arms every rail, so that the next completion wakes the Waker. It then polls into dst, because earlier
// completions do not wake it. n is as in Poll.
//
// sleep limits the sleep (verbs.Waker.Sleep). It is 0 if the caller must poll again immediately, and
// math.MaxInt64 if only a wake-up matters. Otherwise a deadline or a lane's next recovery step is due
// then. err is an error of Poll, the error of a rail that could not be armed, or verbs.ErrNotSupported
// without a Waker. With an error, sleep is at most 1 ms, because completions may not wake the Waker.
//
// Sleeping does not use the VirtualCQ, so another goroutine may use it meanwhile. If that goroutine
// posts, Due may move before the wake-up time: it must then wake the Waker or poll by Due itself.
func (c *VirtualCQ) Arm(dst []WC) (n int, sleep time.Duration, err error) {
	if c.waker == nil {
		return 0, busySleep, fmt.Errorf("arm: %w: the virtual CQ has no Waker", verbs.ErrNotSupported)
	}
	var failed error
	for rail, cq := range c.cqs {
		if err := cq.Arm(false); err != nil && failed == nil {
			failed = fmt.Errorf("arm rail %d (%s): %w", rail, c.rails.rails[rail].name, err)
		}
	}
	idle := c.idle
	if n, err = c.Poll(dst); n > 0 {
		return n, 0, nil
	}
	if err == nil {
		err = failed
	}
	switch {
	case err != nil:
		return 0, busySleep, err
	case len(c.reportQueue) > 0 || c.ready.marks.Load() || !c.emptySince(&idle):
		// A NIC refused a request, a control message is queued, or a CQ was too long for one poll. A wake-up is not
		// guaranteed.
		return 0, 0, nil
	}
	return 0, c.longestSleep(), nil
}

// emptySince reports whether every rail's CQ has been found empty since idle was copied.
func (c *VirtualCQ) emptySince(idle *[MaxRails]uint64) bool {
	for rail := range c.cqs {
		if c.idle[rail] == idle[rail] {
			return false
		}
	}
	return true
}

// failedIdle returns a failed VirtualQP without outstanding requests whose failure the program has not seen, or nil.
func (c *VirtualCQ) failedIdle() *VirtualQP {
	c.failed = slices.DeleteFunc(c.failed, func(q *VirtualQP) bool { return q.failover.errShown })
	for _, q := range c.failed {
		if !q.outstanding() {
			return q
		}
	}
	return nil
}

// Limits of a sleep while a VirtualQP must be driven.
const (
	busySleep = time.Millisecond      // longest sleep while a VirtualQP needsDriving
	minSleep  = 20 * time.Microsecond // cost of a timer
)

// longestSleep returns the time until a VirtualQP must be driven.
func (c *VirtualCQ) longestSleep() time.Duration {
	r := &c.ready
	due, longest := r.due(), time.Duration(math.MaxInt64)
	var first *VirtualQP
	switch {
	case len(r.qps) > 0:
		first, longest = r.qps[0], busySleep
	case r.timers.Len() > 0:
		first = r.timers.Front()
	default:
		return longest
	}
	return min(longest, max(time.Duration(due-first.setup.cfg.Now()), minSleep))
}

// Serve drives the VirtualCQ of a passive side, whose memory only the peer accesses. It polls and sleeps
// until ctx is done, and passes each completion to each unless each is nil. It returns ctx.Err() or the
// first error of Wait, and may be called again.
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

// Due returns the time, on the Config.Now clock, by which Poll must be called even without a completion:
// for a lane's next recovery step, a deadline, or immediately to retry a request that a NIC rejected. It
// is math.MaxInt64 if no such time is set. Due is for callers with their own event loop, which must also
// poll when a rail's CQ or a Control is ready. Wait and Arm handle all this.
func (c *VirtualCQ) Due() int64 {
	due := c.ready.due()
	for _, q := range c.reportQueue {
		due = min(due, q.clock.now)
	}
	return due
}

// requestDue returns the time of the next check of the oldest request, or math.MaxInt64.
func (f *failover) requestDue() int64 {
	if seq, ok := f.send.sends.oldest(); ok && f.state == stateConnected {
		return f.watchdog.due(f.send.sends.slot(seq).deadline)
	}
	return math.MaxInt64
}

// due returns the time of the VirtualQP's next drive.
func (f *failover) due() int64 {
	due, now := f.requestDue(), f.clock.now
	if f.peerExit.cause != nil && f.state == stateConnected {
		due = min(due, max(f.peerExit.since+exitGrace, now+driveBusy))
	}
	if f.state != stateConnected || (f.out == 0 && !f.displaced) {
		return due
	}
	for _, l := range f.setup.all {
		v := &l.recovery
		switch v.state {
		case laneUp:
			if l.rail != v.home {
				due = min(due, max(v.since, now)+backoffMax/8)
			}
			if v.probeSent {
				due = min(due, max(v.due, now+driveBusy))
			}
		case laneDying:
			due = min(due, now+driveBusy) // empty polls show that it is drained
		case laneGone, laneIdle, laneOffered:
			next := v.due
			if v.state == laneIdle {
				next = f.rebuildDue(l)
			}
			if next > now {
				due = min(due, next)
			} else {
				due = min(due, now+resendTime) // waits for the peer's message
			}
		case laneProbing:
			due = min(due, max(v.due, now+driveBusy))
		}
	}
	return due
}
