package sim

import "slices"

// clone copies a plan, so that the copy can be changed.
func (p *Plan) clone() *Plan {
	c := *p
	c.Rails = slices.Clone(p.Rails)
	c.Connects = slices.Clone(p.Connects)
	c.Faults = slices.Clone(p.Faults)
	return &c
}

// Shrink searches for a smaller plan that fails in the same way: with fewer faults, messages, lanes,
// rails or hosts, or a better network. It runs at most budget worlds and returns the smallest plan
// found, or p.
func Shrink(p *Plan, failure *Failure, o Options, budget int) *Plan {
	o.Trace = nil
	best := p
	fails := func(c *Plan) bool {
		budget--
		return c.Run(o).Failure.same(failure)
	}
	for smaller := true; smaller; {
		smaller = false
		for i := len(best.Faults) - 1; i >= 0; i-- {
			c := best.clone()
			c.Faults = slices.Delete(c.Faults, i, i+1)
			if budget > 0 && fails(c) {
				best, smaller = c, true
			}
		}
		for _, change := range reductions {
			c := best.clone()
			change(c)
			if budget > 0 && c.String() != best.String() && fails(c) {
				best, smaller = c, true
			}
		}
		smaller = smaller && budget > 0
	}
	return best
}

// reductions are changes that make a plan smaller or leave it as it is.
var reductions = []func(*Plan){
	func(p *Plan) { p.Connects = p.Connects[:max(len(p.Connects)/2, 1)] },
	func(p *Plan) { p.Connects = p.Connects[len(p.Connects)/2:] },
	func(p *Plan) {
		top := 1
		for i := range p.Connects {
			top = max(top, p.Connects[i].From, p.Connects[i].To)
		}
		p.Hosts = top + 1
	},
	func(p *Plan) { p.Rails = p.Rails[:max(len(p.Rails)/2, 1)] },
	func(p *Plan) { p.Rails = p.Rails[len(p.Rails)/2:] },
	func(p *Plan) { p.Shared = 0 },
	func(p *Plan) { p.Pool = 0 },
	forEnds(func(e *EndPlan) { e.Messages /= 2 }),
	func(p *Plan) { p.Connects[0].Ends[0].Messages = 0 },
	func(p *Plan) { p.Connects[0].Ends[1].Messages = 0 },
	forEnds(func(e *EndPlan) { e.Messages -= e.Messages / 4 }),
	forEnds(func(e *EndPlan) { e.Messages = max(e.Messages-1, 0) }),
	forRails(func(r *RailPlan) { r.Impairment.Loss = 0 }),
	forRails(func(r *RailPlan) { r.Impairment.Duplicate = 0 }),
	forRails(func(r *RailPlan) { r.Impairment.Reorder = 0 }),
	forRails(func(r *RailPlan) { r.Impairment.Corrupt = 0 }),
	forRails(func(r *RailPlan) { r.Impairment.Jitter = 0 }),
	forRails(func(r *RailPlan) { r.Impairment.Rate = 0 }),
	forRails(func(r *RailPlan) { r.PortRate = 0 }),
	forRails(func(r *RailPlan) { r.Paths = 1 }),
	forRails(func(r *RailPlan) { r.PathRate, r.Skew = 0, 0 }),
	forRails(func(r *RailPlan) { r.Window, r.Queue = 128, 1024 }),
	forRails(func(r *RailPlan) { r.InTurn = false }),
	forRails(func(r *RailPlan) { r.Wrapped = false }),
	forRails(func(r *RailPlan) { r.Flows = 1 }),
	forRails(func(r *RailPlan) { r.Credits = false }),
	forRails(func(r *RailPlan) { // UC keeps the order
		if r.Datagrams {
			r.Datagrams, r.Impairment.Duplicate, r.Impairment.Reorder = false, 0, 0
		}
	}),
	forRails(func(r *RailPlan) { r.UCPaths = max(r.UCPaths/2, 1) }),
	func(p *Plan) { p.Work.Sizes[1] = max(p.Work.Sizes[1]/2, p.Work.Sizes[0], 8) },
	func(p *Plan) { p.Work.Ops = shrinkOps(p.Work.Ops, 0) },
	func(p *Plan) { p.Work.Ops = shrinkOps(p.Work.Ops, 1) },
	func(p *Plan) { p.Work.Ops = shrinkOps(p.Work.Ops, 2) },
	func(p *Plan) { p.Work.Ops = shrinkOps(p.Work.Ops, 3) },
	func(p *Plan) { p.Work.Ops = shrinkOps(p.Work.Ops, 4) },
	func(p *Plan) { p.Work.Inline = 0 },
	func(p *Plan) { p.Work.Fence = 0 },
	func(p *Plan) { p.Work.Silent = 0 },
	func(p *Plan) { p.Work.Scatter = 0 },
	func(p *Plan) { p.Work.Polls = 0 },
	func(p *Plan) { p.Work.Gap = 0 },
	func(p *Plan) { p.Work.Batch = 64 },
	func(p *Plan) { p.Work.Burst = max(p.Work.Burst/2, 1) },
	forConnects(func(c *ConnectPlan) { c.Lanes = max(c.Lanes/2, 1) }),
	forConnects(func(c *ConnectPlan) { c.Lanes = max(c.Lanes-1, 1) }),
	forConnects(func(c *ConnectPlan) { c.Policy = 0 }),
	forConnects(func(c *ConnectPlan) { c.Scheme = 0 }),
	forConnects(func(c *ConnectPlan) { c.Fragment = 0 }),
	forEnds(func(e *EndPlan) { e.SignalInterval = 1 }),
}

// shrinkOps removes kind i from a set, unless it is the last one.
func shrinkOps(ops OpSet, i int) OpSet {
	if rest := ops &^ (1 << i); rest != 0 {
		return rest
	}
	return ops
}

func forRails(f func(*RailPlan)) func(*Plan) {
	return func(p *Plan) {
		for i := range p.Rails {
			f(&p.Rails[i])
		}
	}
}

func forConnects(f func(*ConnectPlan)) func(*Plan) {
	return func(p *Plan) {
		for i := range p.Connects {
			f(&p.Connects[i])
		}
	}
}

func forEnds(f func(*EndPlan)) func(*Plan) {
	return forConnects(func(c *ConnectPlan) {
		for i := range c.Ends {
			f(&c.Ends[i])
		}
	})
}
