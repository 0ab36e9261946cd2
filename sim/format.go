package sim

import (
	"fmt"
	"strings"
)

// String writes a fault as a scenario does, without the word fault.
func (f *Fault) String() string {
	var b strings.Builder
	b.WriteString(f.Kind.String())
	k := f.Kind
	if k.uses(atEnd) {
		fmt.Fprintf(&b, " end %d%c", f.Connect, 'a'+f.End)
	}
	if k.uses(atLane) {
		fmt.Fprintf(&b, " lane %d", f.Lane)
	}
	if k.uses(atRail) {
		fmt.Fprintf(&b, " rail %d", f.Rail)
	}
	if k.uses(atHost) {
		fmt.Fprintf(&b, " host %d", f.From)
	}
	if k.uses(atPath) {
		fmt.Fprintf(&b, " from %d to %d", f.From, f.To)
	}
	if k.uses(atRoute) {
		fmt.Fprintf(&b, " path %d", f.Path)
	}
	if k.uses(hasAfter) {
		fmt.Fprintf(&b, " after %d", f.After)
	}
	if k.uses(hasTimes) {
		fmt.Fprintf(&b, " times %d", f.Times)
	}
	fmt.Fprintf(&b, " at %s", formatValue(unitTime, int64(f.At)))
	if k.uses(hasFor) {
		fmt.Fprintf(&b, " for %s", formatValue(unitTime, int64(f.For)))
	}
	return b.String()
}

// String writes a plan as a scenario in which nothing is left open: parsed, and drawn with
// the seed of the plan, it gives the same plan.
func (p *Plan) String() string {
	var b strings.Builder
	put := func(list []setting, name string, v int64) {
		fmt.Fprintf(&b, " %s %s", name, formatValue(settingNamed(list, name).unit, v))
	}
	line := func(list []setting, name string, v int64) {
		fmt.Fprintf(&b, "%s %s\n", name, formatValue(settingNamed(list, name).unit, v))
	}
	w := &p.Work
	flag := map[bool]int64{true: 1}
	line(planSettings, "hosts", int64(p.Hosts))
	line(planSettings, "rails", int64(len(p.Rails)))
	line(planSettings, "connections", int64(len(p.Connects)))
	line(planSettings, "shared", int64(p.Shared))
	line(planSettings, "failover", flag[p.Failover])
	line(planSettings, "keep-atomics", flag[p.KeepAtomics])
	line(planSettings, "quantum", int64(p.Quantum))
	line(planSettings, "goodput", int64(p.Goodput))
	fmt.Fprintf(&b, "sizes %d..%d\n", w.Sizes[0], w.Sizes[1])
	b.WriteString("ops")
	for i, name := range opNames {
		if w.Ops>>i&1 != 0 {
			b.WriteString(" " + name)
		}
	}
	b.WriteString("\n")
	line(planSettings, "burst", int64(w.Burst))
	line(planSettings, "gap", int64(w.Gap))
	line(planSettings, "batch", int64(w.Batch))
	line(planSettings, "polls", int64(w.Polls))
	line(planSettings, "inline", int64(w.Inline)*100)
	line(planSettings, "fence", int64(w.Fence)*100)
	line(planSettings, "unsignaled", int64(w.Silent)*100)
	line(planSettings, "scatter", int64(w.Scatter)*100)
	line(planSettings, "room", int64(w.Room))
	line(planSettings, "faults", 0)
	for i := range p.Rails {
		fmt.Fprintf(&b, "rail %d", i)
		p.Rails[i].format(put)
		b.WriteString("\n")
	}
	for i := range p.Connects {
		c := &p.Connects[i]
		fmt.Fprintf(&b, "connection %d", i)
		c.format(put)
		b.WriteString("\n")
		for side := range c.Ends {
			fmt.Fprintf(&b, "end %d%c", i, 'a'+side)
			c.Ends[side].format(put)
			b.WriteString("\n")
		}
	}
	for i := range p.Faults {
		fmt.Fprintf(&b, "fault %s\n", &p.Faults[i])
	}
	fmt.Fprintf(&b, "expect %s\n", expectNames[p.Expect])
	return b.String()
}

func (r *RailPlan) format(put func([]setting, string, int64)) {
	i := &r.Impairment
	share := func(name string, v float64) { put(railSettings, name, int64(v*10000+0.5)) }
	put(railSettings, "mtu", int64(r.MTU))
	put(railSettings, "window", int64(r.Window))
	put(railSettings, "queue", int64(r.Queue))
	share("loss", i.Loss)
	share("duplicate", i.Duplicate)
	share("reorder", i.Reorder)
	share("corrupt", i.Corrupt)
	put(railSettings, "delay", int64(i.Delay))
	put(railSettings, "jitter", int64(i.Jitter))
	put(railSettings, "rate", int64(i.Rate))
	put(railSettings, "port-rate", int64(r.PortRate))
	put(railSettings, "port-queue", int64(r.PortQueue))
	put(railSettings, "paths", int64(r.Paths))
	put(railSettings, "path-rate", int64(r.PathRate))
	put(railSettings, "path-queue", int64(r.PathQueue))
	put(railSettings, "skew", int64(r.Skew))
}

func (c *ConnectPlan) format(put func([]setting, string, int64)) {
	put(connectSettings, "from", int64(c.From))
	put(connectSettings, "to", int64(c.To))
	put(connectSettings, "lanes", int64(c.Lanes))
	track := int64(0)
	if c.TrackSingleLane {
		track = 1
	}
	put(connectSettings, "track", track)
	put(connectSettings, "scheme", int64(c.Scheme))
	put(connectSettings, "policy", int64(c.Policy))
	put(connectSettings, "fragment", int64(c.Fragment))
}

func (e *EndPlan) format(put func([]setting, string, int64)) {
	put(endSettings, "send-depth", int64(e.SendDepth))
	put(endSettings, "recv-depth", int64(e.RecvDepth))
	put(endSettings, "lane-depth", int64(e.LaneDepth))
	put(endSettings, "notify-depth", int64(e.NotifyDepth))
	put(endSettings, "signal-interval", int64(e.SignalInterval))
	put(endSettings, "receives", int64(e.Receives))
	put(endSettings, "messages", int64(e.Messages))
}
