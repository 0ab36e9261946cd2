package ibverbx

import (
	"errors"
	"fmt"
	"slices"

	"ibverbx/verbs"
)

// pollBatch is how many physical completions are taken at once.
const pollBatch = 64

// CQConfig describes a VirtualCQ.
type CQConfig struct {
	// Depth is how many physical completions each rail must hold: at least the sum of
	// LaneDepth and RecvDepth over the lanes that the VirtualQPs have on it, which
	// NewQP checks. Zero means 65536.
	Depth int
	// Waker is woken when a rail that was armed has a completion. Nil means polling
	// only.
	Waker *verbs.Waker
}

// VirtualCQ is a completion queue over one CQ per rail. Several VirtualQPs can share it.
// A VirtualCQ and its VirtualQPs are for one goroutine at a time.
type VirtualCQ struct {
	rails   *Rails
	cqs     []verbs.CQ
	waker   *verbs.Waker
	guard   guard
	routes  []routeTable
	used    []int // completions that the lanes of a rail can have outstanding
	buf     [pollBatch]verbs.WC
	touched []*VirtualQP // have new completions, or could not report all
	next    int          // rail that the next Poll begins with
	err     error        // to be returned when nothing else is
	qpCount uint32

	stats CQStats
}

// CQStats counts what a VirtualCQ met.
type CQStats struct {
	CQEs    uint64
	Stale   uint64 // completions of a lane as it was before
	Unknown uint64 // completions of a QP that is not registered
}

// NewCQ creates a CQ on every rail.
func (r *Rails) NewCQ(cfg CQConfig) (*VirtualCQ, error) {
	if cfg.Depth == 0 {
		cfg.Depth = 1 << 16
	}
	c := &VirtualCQ{rails: r, waker: cfg.Waker, routes: make([]routeTable, len(r.rails)), used: make([]int, len(r.rails))}
	for i := range r.rails {
		cq, err := r.rails[i].cfg.Context.CreateCQ(verbs.CQConfig{Depth: cfg.Depth, Waker: cfg.Waker})
		if err != nil {
			return nil, errors.Join(fmt.Errorf("make virtual CQ: rail %d (%s): %w", i, r.rails[i].name, err), c.Close())
		}
		c.cqs = append(c.cqs, cq)
		c.routes[i].init(0)
	}
	return c, nil
}

// Stats returns the counters of the queue.
func (c *VirtualCQ) Stats() CQStats { return c.stats }

// Close destroys the CQs; the VirtualQPs must be closed first.
func (c *VirtualCQ) Close() error {
	var errs []error
	for _, cq := range c.cqs {
		errs = append(errs, cq.Close())
	}
	return errors.Join(errs...)
}

// reserve books room for the completions of a lane, and release gives it back.
func (c *VirtualCQ) reserve(rail, n int) error {
	if have := c.cqs[rail].Depth(); c.used[rail]+n > have {
		return verbs.Invalidf("CQConfig.Depth: rail %d has %d completions, %d are taken and %d more are needed", rail, have, c.used[rail], n)
	}
	c.used[rail] += n
	return nil
}

func (c *VirtualCQ) release(rail, n int) { c.used[rail] -= n }

// Poll takes completions of all rails and returns up to len(dst) of the VirtualQPs: for
// each in posting order. What does not fit is kept. It never blocks, and an error never
// loses a completion: it is returned when nothing else is.
func (c *VirtualCQ) Poll(dst []WC) (n int, err error) {
	c.guard.enter("Poll")
	n, err = c.poll(dst)
	c.guard.leave()
	return n, err
}

func (c *VirtualCQ) poll(dst []WC) (n int, err error) {
	if len(c.touched) > 0 {
		n = c.report(dst, 0)
	}
	rails := len(c.cqs)
	for k := range rails {
		rail := c.next + k
		if rail >= rails {
			rail -= rails
		}
		for n < len(dst) {
			got, err := c.cqs[rail].Poll(c.buf[:min(pollBatch, len(dst)-n)])
			if err != nil && c.err == nil {
				c.err = fmt.Errorf("poll rail %d (%s): %w", rail, c.rails.rails[rail].name, err)
			}
			if got == 0 {
				break
			}
			n = c.process(rail, c.buf[:got], dst, n)
			n = c.report(dst, n)
		}
	}
	if c.next++; c.next == rails {
		c.next = 0
	}
	if n == 0 && c.err != nil {
		err, c.err = c.err, nil
	}
	return n, err
}

// process routes completions of one rail. Those of a VirtualQP that passes through go
// straight to dst, which has room for them; n counts what is in it.
func (c *VirtualCQ) process(rail int, wcs []verbs.WC, dst []WC, n int) int {
	c.stats.CQEs += uint64(len(wcs))
	for i := range wcs {
		wc := &wcs[i]
		l := c.routes[rail].find(wc.QPN)
		if l == nil {
			c.unknown(rail, wc)
			continue
		}
		q := l.owner
		l.counts.CQEs++
		if q.direct {
			q.passUp(wc, &dst[n])
			n++
			continue
		}
		q.completed(l, wc)
		c.touch(q)
	}
	return n
}

// touch makes the next report look at q.
func (c *VirtualCQ) touch(q *VirtualQP) {
	if !q.touched {
		q.touched = true
		c.touched = append(c.touched, q)
	}
}

// unknown notes a completion that belongs to nobody.
func (c *VirtualCQ) unknown(rail int, wc *verbs.WC) {
	c.stats.Unknown++
	if c.err == nil {
		c.err = fmt.Errorf("poll rail %d (%s): %w: completion of QP %#06x, which is not registered",
			rail, c.rails.rails[rail].name, verbs.ErrNotFound, wc.QPN)
	}
}

// report lets the VirtualQPs that have something new dispatch and report. Those that
// could not report everything stay on the list, and so do those of which a NIC refused
// something: no completion need come that would make them try again.
func (c *VirtualCQ) report(dst []WC, n int) int {
	keep := c.touched[:0]
	for _, q := range c.touched {
		q.dispatch()
		n += q.report(dst[n:])
		if q.reportable() || len(q.staged) > 0 || (q.state == stateFailed && q.unmarked()) {
			keep = append(keep, q)
		} else {
			q.touched = false
		}
	}
	c.touched = keep
	return n
}

// forget takes a VirtualQP that is being closed off the list.
func (c *VirtualCQ) forget(q *VirtualQP) {
	c.touched = slices.DeleteFunc(c.touched, func(other *VirtualQP) bool { return other == q })
	q.touched = false
}
