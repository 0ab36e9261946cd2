package ibverbx

import (
	"errors"
	"fmt"
	"slices"

	"ibverbx/verbs"
)

// This file keeps the engine working on the other rails while one rail's device has failed. Objects that cannot be
// created there are left out: regions lack a key, a VirtualCQ has an absentCQ, and a lane has an absentQP and starts
// out of service. Before failover rebuilds a lane on the rail, it creates the missing objects (VirtualCQ.revive).
// Only requests without a key for every rail are checked per lane.

// assume copies the attributes of the first working rail to rails whose device has failed. It returns failed if no
// rail works.
func (r *Rails) assume(failed error) error {
	i := slices.IndexFunc(r.rails, func(one rail) bool { return !one.assumed })
	if i < 0 {
		return failed
	}
	for k := range r.rails {
		if one := &r.rails[k]; one.assumed {
			one.railAttrs = r.rails[i].railAttrs
			one.name, one.assumed = one.cfg.Context.Device().Name(), true
		}
	}
	return nil
}

// domain returns the protection domain of a rail, and allocates it if the device had failed before. It rejects a
// device with lower limits than assumed.
func (r *Rails) domain(rail int) (verbs.PD, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	one := &r.rails[rail]
	if one.pd != nil {
		return one.pd, nil
	}
	if !one.assumed {
		pd, err := allocPD(one.cfg.Context)
		one.pd = pd
		return pd, err
	}
	var real railAttrs
	pd, err := real.open(one.cfg)
	if err != nil {
		return nil, err
	}
	if a, b := &real.attr, &one.attr; a.MaxCQE < b.MaxCQE || a.MaxQPWR < b.MaxQPWR || a.MaxSGE < b.MaxSGE || a.MaxInline < b.MaxInline ||
		a.MaxMsgSize < b.MaxMsgSize || real.mtu < one.mtu {
		err := fmt.Errorf("%w: the device had failed in NewRails, and has lower limits than the others", verbs.ErrNotSupported)
		return nil, errors.Join(err, pd.Close())
	}
	one.pd = pd
	return pd, nil
}

// allocPD allocates a protection domain, which is nil on error.
func allocPD(ctx verbs.Context) (verbs.PD, error) {
	pd, err := ctx.AllocPD()
	if err != nil {
		return nil, err
	}
	return pd, nil
}

// register registers a region on every rail except rails with a failed device. It fails if all devices have failed.
// later is set if the region can be registered on these devices once they work again.
func (r *Rails) register(g *Region, later bool) (*Region, error) {
	var failed error // of the last failed device
	usable := false
	for i := range r.rails {
		err := g.registerOn(r, i)
		if err != nil && !errors.Is(err, verbs.ErrDeviceFatal) {
			return nil, errors.Join(err, g.Close())
		}
		if usable = usable || err == nil; err != nil {
			failed = err
		}
	}
	switch {
	case failed == nil:
		g.complete.Store(r)
		return g, nil
	case !usable:
		return nil, failed
	case later:
		r.setPartial(g, true)
		for i := range r.rails { // one may have been revived before g was partial
			_ = r.complete(g, i) // on error, revive retries
		}
	}
	return g, nil
}

// registerOn registers a region on a rail. The caller holds closing, or is the only one to know the region.
func (g *Region) registerOn(r *Rails, rail int) error {
	pd, err := r.domain(rail)
	var mr verbs.MR
	if err == nil {
		mr, err = g.on(pd)
	}
	if err != nil {
		return fmt.Errorf("register on rail %d (%s): %w", rail, r.rails[rail].name, err)
	}
	g.mrs[rail], g.lkeys[rail] = mr, mr.LKey()
	if g.length == 0 {
		g.addr, g.length = mr.Addr(), mr.Len()
	}
	return nil
}

// allocRegion allocates and registers n bytes for the engine.
func (r *Rails) allocRegion(n int) (*Region, error) {
	m, err := verbs.AllocMemory(n, nil)
	if err != nil {
		return nil, err
	}
	g, err := r.Register(m, verbs.AccessLocalWrite)
	if err != nil {
		return nil, errors.Join(err, m.Free())
	}
	return g, nil
}

// free closes a region from allocRegion and frees its memory.
func (g *Region) free() error {
	if err := g.Close(); err != nil {
		return err
	}
	return g.memory.Free()
}

// setPartial adds a region to Rails.partial, or removes it.
func (r *Rails) setPartial(g *Region, on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if on {
		r.partial = append(r.partial, g)
	} else if i := slices.Index(r.partial, g); i >= 0 {
		r.partial = slices.Delete(r.partial, i, i+1)
	}
}

// complete registers a partial region on a rail, unless it is registered there or closed.
func (r *Rails) complete(g *Region, rail int) error {
	g.closing.Lock()
	defer g.closing.Unlock()
	if g.rails == nil || g.mrs[rail] != nil {
		return nil
	}
	if err := g.registerOn(r, rail); err != nil {
		return err
	}
	if !slices.Contains(g.mrs[:len(r.rails)], nil) {
		g.complete.Store(r)
		r.setPartial(g, false)
	}
	return nil
}

// registered reports whether the region is registered on a rail.
func (g *Region) registered(rail uint8) bool {
	return g.complete.Load() != nil || g.hasMR(rail)
}

func (g *Region) hasMR(rail uint8) bool {
	g.closing.Lock()
	defer g.closing.Unlock()
	return g.mrs[rail&(MaxRails-1)] != nil
}

// registered reports whether all elements are registered on a rail.
func registered(list []SGE, rail uint8) bool {
	for i := range list {
		if e := &list[i]; e.Length > 0 && !e.Region.registered(rail) {
			return false
		}
	}
	return true
}

// revive creates the registrations, the CQ and the SRQ that a rail lacks because its device had failed, and refills an
// SRQ that was used up then.
func (c *VirtualCQ) revive(rail int) error {
	r := c.rails
	r.mu.Lock()
	partial := slices.Clone(r.partial)
	r.mu.Unlock()
	for _, g := range partial {
		if err := r.complete(g, rail); err != nil {
			return err
		}
	}
	if _, absent := c.cqs[rail].(*absentCQ); absent {
		cq, err := r.rails[rail].cfg.Context.CreateCQ(verbs.CQConfig{Depth: c.depth[rail], Waker: c.waker})
		if err != nil {
			return err
		}
		c.cqs[rail] = cq
	}
	if c.shared != nil && (c.shared.rails[rail].srq == nil || c.shared.isLow(rail)) {
		return c.shared.open(r, rail)
	}
	return nil
}

// absentCQ replaces the CQ of a failed device. It is always empty.
type absentCQ struct{ depth int }

func (*absentCQ) Poll([]verbs.WC) (int, error) { return 0, nil }
func (*absentCQ) Arm(bool) error               { return nil }
func (c *absentCQ) Depth() int                 { return c.depth }
func (*absentCQ) Close() error                 { return nil }

// Resize lets VirtualCQ.fit enlarge the CQ.
func (c *absentCQ) Resize(depth int) error {
	c.depth = depth
	return nil
}

// absentQP replaces the QP of a lane on a failed device. err is the device's error.
type absentQP struct{ err error }

func (absentQP) Num() uint32                                   { return 0 }
func (absentQP) Type() verbs.QPType                            { return verbs.RC }
func (absentQP) State() verbs.QPState                          { return verbs.StateErr }
func (q absentQP) Modify(verbs.QPAttr, verbs.QPAttrMask) error { return q.err }
func (q absentQP) Query() (verbs.QPAttr, error)                { return verbs.QPAttr{}, q.err }
func (q absentQP) Endpoint() (verbs.Endpoint, error)           { return verbs.Endpoint{}, q.err }
func (q absentQP) Connect(verbs.Endpoint) error                { return q.err }
func (q absentQP) PostSend([]verbs.SendWR) (int, error)        { return 0, q.err }
func (q absentQP) PostRecv([]verbs.RecvWR) (int, error)        { return 0, q.err }
func (absentQP) Close() error                                  { return nil }

// absent reports whether the lane still lacks a QP.
func (l *lane) absent() bool {
	_, absent := l.qp.(absentQP)
	return absent
}

// errUnregistered means that memory is not registered on a rail, because its device had failed.
var errUnregistered = fmt.Errorf("%w: the memory is not registered on the rail", verbs.ErrDeviceFatal)
