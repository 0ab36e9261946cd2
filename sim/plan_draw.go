package sim

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// planner creates the plan of a scenario and a seed. The seed decides everything that the scenario leaves open.
type planner struct {
	*rand.Rand
	s *Scenario
	p *Plan
	// end is the end whose settings are being drawn.
	end *EndPlan
	// messages is the default number of requests per end.
	messages int
	// rail is the rail whose transport is being drawn.
	rail *RailPlan
	// wrap selects the wrapped rails of the world.
	wrap wrapping
}

// oneOf draws one of the values.
func oneOf(v ...int64) func(*planner) int64 {
	return func(d *planner) int64 { return v[d.IntN(len(v))] }
}

// upTo draws from 0 to n, and 0 in half of all cases.
func upTo(n int64) func(*planner) int64 {
	return func(d *planner) int64 {
		if d.IntN(2) == 0 {
			return 0
		}
		return d.Int64N(n + 1)
	}
}

// none is 0 by default.
func none(*planner) int64 { return 0 }

// draw makes the plan of a seed.
func (s *Scenario) draw(seed uint64) *Plan {
	p := &Plan{Name: s.Name, Seed: seed, Expect: s.expect}
	d := &planner{Rand: rand.New(rand.NewPCG(seed, 1)), s: s, p: p}
	d.fill("", worldSettings, p.fields())
	for i := range d.count("rails") {
		var r RailPlan
		d.fill(railPlace(i), railSettings, r.fields())
		p.Rails = append(p.Rails, r)
	}
	p.Work.Ops = s.ops
	p.Work.Sizes = [2]int{0, int(oneOf(64, 2<<10, 2<<10, 8<<10, 8<<10, 16<<10, 64<<10, maxMessage)(d))}
	if pin, ok := s.pins["sizes"]; ok {
		p.Work.Sizes = [2]int{int(pin.low), int(pin.high)}
	}
	d.fill("", workSettings, p.Work.fields())
	connections := d.count("connections")
	messages := 100 + d.IntN(500)
	if p.Work.Sizes[1] > 16<<10 {
		messages = 50 + d.IntN(150)
	}
	d.messages = messages/(2*connections) + 1
	for range connections {
		p.Connects = append(p.Connects, d.connect())
	}
	for i := range s.faults {
		p.Faults = append(p.Faults, d.named(&s.faults[i]))
	}
	for range d.count("faults") {
		p.Faults = append(p.Faults, d.fault())
	}
	d.Rand = rand.New(rand.NewPCG(seed, 3))
	d.transports()
	d.Rand = rand.New(rand.NewPCG(seed, 4))
	switch p.Pool = d.count("pool"); {
	case p.Pool > 0 && !p.Failover && d.wrap != wrapNone:
		p.Pool = 0 // package reliable keeps receives for a peer that dies unnoticed
	case p.Pool > 0:
		p.Pool = max(p.Pool, len(p.Rails)) // each rail needs one
	}
	return p
}

// railPlace is the place of the settings of a rail.
func railPlace(rail int) string { return fmt.Sprintf("rail %d ", rail) }

// fill gives fields the values that the scenario fixes, at a place or everywhere, and draws the rest.
func (d *planner) fill(place string, list []setting, fields []any) {
	for i := range list {
		list[i].store(fields[i], d.pick(place, &list[i]))
	}
}

func (d *planner) pick(place string, set *setting) int64 {
	p, ok := d.pinned(place, set.name)
	if !ok {
		return set.draw(d)
	}
	return d.within(p)
}

// pinned returns the value that the scenario fixes, at a place or everywhere.
func (d *planner) pinned(place, name string) (p pinned, ok bool) {
	if p, ok = d.s.pins[place+name]; !ok {
		p, ok = d.s.pins[name]
	}
	return p, ok
}

// count returns one of listSettings.
func (d *planner) count(name string) int { return int(d.pick("", settingNamed(listSettings, name))) }

func (d *planner) within(p pinned) int64 { return p.low + d.Int64N(p.high-p.low+1) }

func (d *planner) connect() (c ConnectPlan) {
	i := len(d.p.Connects)
	d.fill(fmt.Sprintf("connection %d ", i), connectSettings, c.fields())
	// Out-of-range hosts wrap.
	c.From, c.To = c.From%d.p.Hosts, c.To%d.p.Hosts
	if c.Fragment > 0 && d.p.Work.Sizes[1]/int(c.Fragment) > 256 {
		c.Fragment = uint32(d.p.Work.Sizes[1] / 256)
	}
	for side := range c.Ends {
		e := &c.Ends[side]
		d.end = e
		d.fill(fmt.Sprintf("end %d%c ", i, 'a'+side), endSettings, e.fields())
		e.Receives = min(e.Receives, e.RecvDepth)
	}
	return c
}

// named makes a fault that the scenario names. Fields that the scenario leaves open are drawn.
func (d *planner) named(l *faultLine) Fault {
	f := d.place(l.kind)
	fields := f.fields()
	for i := range faultSettings {
		if p, ok := l.pins[faultSettings[i].name]; ok {
			faultSettings[i].store(fields[i], d.within(p))
		}
	}
	if l.end >= 0 {
		f.Connect, f.End = l.end/2, l.end%2
	}
	return f
}

// gentle are the faults that a seed chooses from without failover, unless the scenario lists some. Most of them spare the lanes, because a
// lost lane fails its VirtualQP.
var gentle = []FaultKind{
	FaultCut, FaultBlackHole, FaultPort, FaultFlap, FaultHold, FaultSlow, FaultRefuse, FaultStarve, FaultPause,
	FaultCut, FaultBlackHole, FaultPort, FaultFlap, FaultHold, FaultSlow, FaultRefuse, FaultStarve, FaultPause,
	FaultQP, FaultQP, FaultReset, FaultDead, FaultBroken, FaultBadKey, FaultCQ, FaultCrash,
	FaultPathCut, FaultPathSlow,
}

// rough are the faults that a seed chooses from with failover.
var rough = []FaultKind{
	FaultCut, FaultBlackHole, FaultPort, FaultFlap, FaultHold, FaultSlow, FaultRefuse, FaultStarve, FaultPause,
	FaultQP, FaultQP, FaultReset, FaultDead, FaultBroken,
	FaultQP, FaultQP, FaultReset, FaultDead, FaultBroken, FaultBadKey, FaultCQ, FaultCrash,
	FaultControlCut, FaultControlDelay, FaultControlRepeat, FaultControlReorder, FaultControlLoss,
	FaultPathCut, FaultPathCut, FaultPathSlow, FaultRestart,
}

// fault draws a fault.
func (d *planner) fault() Fault {
	kinds := d.s.kinds
	switch {
	case len(kinds) > 0:
	case d.p.Failover:
		kinds = rough
	default:
		kinds = gentle
	}
	return d.place(kinds[d.IntN(len(kinds))])
}

// place draws where and when a fault happens.
func (d *planner) place(k FaultKind) Fault {
	f := Fault{Kind: k, At: time.Duration(d.Int64N(oneOf(20_000, 100_000, 500_000, 2_000_000)(d)))}
	if k.uses(atRail) {
		f.Rail = d.IntN(len(d.p.Rails))
	}
	if k.uses(atHost | atPath) {
		f.From = d.IntN(d.p.Hosts)
	}
	if k.uses(atPath) {
		f.To = (f.From + 1 + d.IntN(d.p.Hosts-1)) % d.p.Hosts
	}
	if k.uses(atRoute) {
		f.Path = d.IntN(d.p.Rails[f.Rail].Paths)
	}
	if k.uses(atEnd) {
		f.Connect, f.End = d.IntN(len(d.p.Connects)), d.IntN(2)
	}
	if k.uses(atLane) {
		f.Lane = d.IntN(d.p.Connects[f.Connect].Lanes + 2)
	}
	if k.uses(hasAfter) {
		f.After = d.IntN(40)
		if k == FaultQP && d.IntN(2) == 0 {
			f.After = 0
		}
	}
	if k.uses(hasTimes) {
		f.Times = 1 + d.IntN(4)
	}
	if k.uses(hasFor) {
		// Some outages are longer than RC's retries last.
		f.For = time.Duration(oneOf(d.Int64N(200_000), d.Int64N(2_000_000), d.Int64N(20_000_000), d.Int64N(80_000_000))(d))
		if d.IntN(10) == 0 && f.Kind.uses(silences) {
			f.For = 700 * time.Millisecond
		}
	}
	return f
}
