package ibverbx

import (
	"errors"
	"fmt"
	"slices"

	"ibverbx/internal/table"
	"ibverbx/verbs"
)

// CQConfig describes a VirtualCQ.
type CQConfig struct {
	// Depth is how many physical completions each rail must hold: at least the sum of
	// LaneDepth and RecvDepth over the lanes that the VirtualQPs have on it, which
	// NewQP checks. Zero means 65536.
	Depth int
	// SharedReceives makes the lanes of all VirtualQPs take the receives that the engine
	// keeps posted from one SRQ per rail, which holds so many, instead of NotifyDepth
	// from a queue of each lane. It is what makes a thousand lanes affordable; a peer that
	// sends more than the user receives is not held back but fails its VirtualQP. Zero
	// means a queue for each lane.
	SharedReceives int
	// Waker is woken when a rail that was armed has a completion. Nil means polling
	// only.
	Waker *verbs.Waker
}

// VirtualCQ is a completion queue over one CQ per rail. Several VirtualQPs can share it.
// A VirtualCQ and its VirtualQPs are for one goroutine at a time.
type VirtualCQ struct {
	rails *Rails
	cqs   []verbs.CQ
	waker *verbs.Waker
	guard guard
	// routes[rail] finds a lane by its QP number, which is unique on a rail.
	routes  []table.Table[*lane]
	used    []int // completions that the lanes of a rail can have outstanding
	buf     [pollBatch]verbs.WC
	each    [pollBatch]WC
	shared  *sharedReceives  // nil if every lane has receives of its own
	touched []*VirtualQP     // have new completions, or could not report all
	kept    []WC             // taken, and had no room in what the caller gave
	next    int              // rail that the next Poll begins with
	idle    [MaxRails]uint64 // polls of each rail that left nothing in it
	err     error            // to be returned when nothing else is
	qpCount uint32           // VirtualQPs that were ever made
	qps     []*VirtualQP     // those that are not closed, oldest first
	depth   int              // of the CQs
	retired []verbs.CQ

	driven []*VirtualQP // with a Control
	polls  uint64
	events []Event
	news   bool // an event came that has not ended a Wait
	stats  CQStats
}

// CQStats counts what a VirtualCQ met.
type CQStats struct {
	CQEs    uint64
	Stale   uint64 // completions of a lane as it was before
	Unknown uint64 // completions of a QP that is not registered
	// EventsLost counts events that nobody took in time.
	EventsLost uint64
}

// NewCQ creates a CQ on every rail.
func (r *Rails) NewCQ(cfg CQConfig) (*VirtualCQ, error) {
	if cfg.Depth == 0 {
		cfg.Depth = 1 << 16
	}
	c := &VirtualCQ{rails: r, waker: cfg.Waker, depth: cfg.Depth, routes: make([]table.Table[*lane], len(r.rails)), used: make([]int, len(r.rails))}
	for i := range r.rails {
		cq, err := r.rails[i].cfg.Context.CreateCQ(verbs.CQConfig{Depth: cfg.Depth, Waker: cfg.Waker})
		if err != nil {
			return nil, errors.Join(fmt.Errorf("make virtual CQ: rail %d (%s): %w", i, r.rails[i].name, err), c.Close())
		}
		c.cqs = append(c.cqs, cq)
	}
	if cfg.SharedReceives != 0 {
		if err := c.shareReceives(cfg.SharedReceives); err != nil {
			return nil, errors.Join(fmt.Errorf("make virtual CQ: %w", err), c.Close())
		}
	}
	return c, nil
}

// shareReceives makes the SRQs and books their completions.
func (c *VirtualCQ) shareReceives(depth int) (err error) {
	if depth < 2 || depth > maxDepth {
		return verbs.Invalidf("CQConfig.SharedReceives is %d: want 2 to %d, or 0", depth, maxDepth)
	}
	for rail := range c.cqs {
		if err := c.reserve(rail, depth); err != nil {
			return err
		}
	}
	c.shared, err = newSharedReceives(c.rails, depth)
	return err
}

// Stats returns the counters of the queue.
func (c *VirtualCQ) Stats() CQStats { return c.stats }

// Close destroys the CQs. The VirtualQPs must be closed first: while there are any it
// returns verbs.ErrBusy, and nothing has changed.
func (c *VirtualCQ) Close() error {
	if len(c.qps) > 0 {
		return fmt.Errorf("close virtual CQ: %w: %d virtual QPs are open", verbs.ErrBusy, len(c.qps))
	}
	var errs []error
	if c.shared != nil {
		if err := c.shared.close(); err != nil {
			return fmt.Errorf("close virtual CQ: %w", err)
		}
		c.shared = nil
	}
	errs = append(errs, c.closeRetired())
	for _, cq := range c.cqs {
		errs = append(errs, cq.Close())
	}
	return errors.Join(errs...)
}

// renewCQ replaces the CQ of a rail that has failed. It has taken all its QPs along; the next
// generations of their lanes use the new one. The old one goes when the last of them has
// been replaced, with the VirtualCQ at the latest.
func (c *VirtualCQ) renewCQ(rail int) error {
	r := &c.rails.rails[rail]
	cq, err := r.cfg.Context.CreateCQ(verbs.CQConfig{Depth: c.depth, Waker: c.waker})
	if err != nil {
		return fmt.Errorf("replace the CQ of rail %d (%s): %w", rail, r.name, err)
	}
	c.retired = append(c.retired, c.cqs[rail])
	c.cqs[rail] = cq
	return nil
}

// closeRetired closes the CQs that were replaced and that no QP uses any more.
func (c *VirtualCQ) closeRetired() (err error) {
	c.retired = slices.DeleteFunc(c.retired, func(cq verbs.CQ) bool {
		e := cq.Close()
		err = errors.Join(err, e)
		return e == nil
	})
	return err
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

// forget drops what is left of a VirtualQP that is being closed: its turn to report,
// completions that were kept, and events.
func (c *VirtualCQ) forget(q *VirtualQP) {
	is := func(other *VirtualQP) bool { return other == q }
	c.qps = slices.DeleteFunc(c.qps, is)
	c.driven = slices.DeleteFunc(c.driven, is)
	c.touched = slices.DeleteFunc(c.touched, is)
	c.kept = slices.DeleteFunc(c.kept, func(wc WC) bool { return wc.QP == q })
	c.events = slices.DeleteFunc(c.events, func(e Event) bool { return e.QP == q })
	q.touched = false
}
