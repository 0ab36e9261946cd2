package sim

import (
	"fmt"
	"strings"
)

// String formats a fault in scenario syntax, without the word fault.
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

// String formats a plan as a scenario without random choices. Parsing the text and deriving a plan with
// the same seed gives an equal plan.
func (p *Plan) String() string {
	var b strings.Builder
	line := func(before, between, after string, list []setting, fields []any) {
		b.WriteString(before)
		for i := range list {
			b.WriteString(between + list[i].format(fields[i]) + after)
		}
	}
	line("", "", "\n", worldSettings, p.fields())
	line("", "", "\n", workSettings, p.Work.fields())
	fmt.Fprintf(&b, "rails %d\nconnections %d\nfaults 0\npool %d\n", len(p.Rails), len(p.Connects), p.Pool)
	fmt.Fprintf(&b, "sizes %d..%d\nops%s", p.Work.Sizes[0], p.Work.Sizes[1], p.Work.Ops.words())
	for i := range p.Rails {
		line(fmt.Sprintf("\nrail %d", i), " ", "", railSettings, p.Rails[i].fields())
		line("", " ", "", transportSettings, p.Rails[i].TransportPlan.fields())
	}
	for i := range p.Connects {
		c := &p.Connects[i]
		line(fmt.Sprintf("\nconnection %d", i), " ", "", connectSettings, c.fields())
		for side := range c.Ends {
			line(fmt.Sprintf("\nend %d%c", i, 'a'+side), " ", "", endSettings, c.Ends[side].fields())
		}
	}
	for i := range p.Faults {
		fmt.Fprintf(&b, "\nfault %s", &p.Faults[i])
	}
	fmt.Fprintf(&b, "\nexpect %s\n", expectNames[p.Expect])
	return b.String()
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
