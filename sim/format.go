package sim

import (
	"fmt"
	"strings"
)

// String writes a fault as a scenario does, without the word fault.
func (f *Fault) String() string {
	text := f.Kind.String()
	for _, part := range [...]struct {
		uses targets // 0 for all
		text string
	}{
		{atEnd, fmt.Sprintf(" end %d%c", f.Connect, 'a'+f.End)},
		{atLane, fmt.Sprintf(" lane %d", f.Lane)},
		{atRail, fmt.Sprintf(" rail %d", f.Rail)},
		{atHost, fmt.Sprintf(" host %d", f.From)},
		{atPath, fmt.Sprintf(" from %d to %d", f.From, f.To)},
		{atRoute, fmt.Sprintf(" path %d", f.Path)},
		{hasAfter, fmt.Sprintf(" after %d", f.After)},
		{hasTimes, fmt.Sprintf(" times %d", f.Times)},
		{0, " at " + formatValue(unitTime, int64(f.At))},
		{hasFor, " for " + formatValue(unitTime, int64(f.For))},
	} {
		if part.uses == 0 || f.Kind.uses(part.uses) {
			text += part.text
		}
	}
	return text
}

// String writes a plan as a scenario that leaves nothing to chance. The same plan results if the
// scenario is parsed and drawn with the seed of the plan.
func (p *Plan) String() string {
	var b strings.Builder
	values := p.values()
	for i, s := range planSettings {
		if s.name == "sizes" {
			fmt.Fprintf(&b, "sizes %d..%d\nops%s\n", p.Work.Sizes[0], p.Work.Sizes[1], p.Work.Ops.words())
			continue
		}
		fmt.Fprintf(&b, "%s %s\n", s.name, formatValue(s.unit, values[i]))
	}
	for i := range p.Rails {
		fmt.Fprintf(&b, "rail %d%s\n", i, formatSettings(railSettings, p.Rails[i].values()))
	}
	for i := range p.Connects {
		c := &p.Connects[i]
		fmt.Fprintf(&b, "connection %d%s\n", i, formatSettings(connectSettings, c.values()))
		for side := range c.Ends {
			fmt.Fprintf(&b, "end %d%c%s\n", i, 'a'+side, formatSettings(endSettings, c.Ends[side].values()))
		}
	}
	for i := range p.Faults {
		fmt.Fprintf(&b, "fault %s\n", &p.Faults[i])
	}
	fmt.Fprintf(&b, "expect %s\n", expectNames[p.Expect])
	return b.String()
}

// formatSettings writes settings and their values on one line.
func formatSettings(list []setting, values []int64) (text string) {
	for i, s := range list {
		text += fmt.Sprintf(" %s %s", s.name, formatValue(s.unit, values[i]))
	}
	return text
}

// words lists the kinds, each after a space.
func (o OpSet) words() (text string) {
	for i, name := range opNames {
		if o>>i&1 != 0 {
			text += " " + name
		}
	}
	return text
}

// onOff is the value of a switch.
func onOff(on bool) int64 {
	if on {
		return 1
	}
	return 0
}

// values returns the values of planSettings. The place of sizes, a range, holds 0, and so does that
// of faults, which are all named.
func (p *Plan) values() []int64 {
	w := &p.Work
	return []int64{
		int64(p.Hosts), int64(len(p.Rails)), int64(len(p.Connects)), int64(p.Shared), onOff(p.Failover), onOff(p.KeepAtomics),
		int64(p.Quantum), int64(p.Goodput), 0, int64(w.Burst), int64(w.Gap), int64(w.Batch), int64(w.Polls),
		int64(w.Inline) * 100, int64(w.Fence) * 100, int64(w.Silent) * 100, int64(w.Scatter) * 100, int64(w.Room), 0,
	}
}

// values returns the values of railSettings.
func (r *RailPlan) values() []int64 {
	i := &r.Impairment
	share := func(v float64) int64 { return int64(v*10000 + 0.5) }
	return []int64{
		int64(r.MTU), int64(r.Window), int64(r.Queue), share(i.Loss), share(i.Duplicate), share(i.Reorder), share(i.Corrupt),
		int64(i.Delay), int64(i.Jitter), int64(i.Rate), int64(r.PortRate), int64(r.PortQueue),
		int64(r.Paths), int64(r.PathRate), int64(r.PathQueue), int64(r.Skew),
	}
}

// values returns the values of connectSettings.
func (c *ConnectPlan) values() []int64 {
	return []int64{
		int64(c.From), int64(c.To), int64(c.Lanes), onOff(c.TrackSingleLane), int64(c.Scheme), int64(c.Policy), int64(c.Fragment),
	}
}

// values returns the values of endSettings.
func (e *EndPlan) values() []int64 {
	return []int64{
		int64(e.SendDepth), int64(e.RecvDepth), int64(e.LaneDepth), int64(e.NotifyDepth), int64(e.SignalInterval),
		int64(e.Receives), int64(e.Messages),
	}
}
