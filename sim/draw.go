package sim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"ibverbx"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// drawer makes a plan of a scenario and a seed: what the scenario fixes, and the rest by
// chance.
type drawer struct {
	*rand.Rand
	s *Scenario
	p *Plan
}

// draw makes the plan of a seed.
func (s *Scenario) draw(seed uint64) *Plan {
	d := &drawer{Rand: rand.New(rand.NewPCG(seed, 1)), s: s, p: &Plan{Name: s.Name, Seed: seed, Expect: s.expect}}
	p := d.p
	p.Hosts = int(d.pick("", "hosts", func() int64 { return d.oneOf(2, 2, 2, 3) }))
	p.Failover = d.pick("", "failover", func() int64 { return d.Int64N(2) }) != 0
	p.KeepAtomics = d.pick("", "keep-atomics", func() int64 { return d.Int64N(2) }) != 0
	p.Shared = int(d.pick("", "shared", func() int64 { return d.oneOf(0, 0, 0, 64, 256) }))
	p.Goodput = int(d.pick("", "goodput", func() int64 { return 0 }))
	p.Quantum = time.Duration(d.pick("", "quantum", func() int64 { return d.oneOf(0, 200, 1000, 4000) }))
	for i := range int(d.pick("", "rails", func() int64 { return d.oneOf(1, 2, 2, 2, 3) })) {
		p.Rails = append(p.Rails, d.rail(fmt.Sprintf("rail %d ", i)))
	}
	d.work()
	connections := int(d.pick("", "connections", func() int64 { return int64(p.Hosts - 1) }))
	messages := 100 + d.IntN(500)
	if p.Work.Sizes[1] > 16<<10 {
		messages = 50 + d.IntN(150)
	}
	for i := range connections {
		p.Connects = append(p.Connects, d.connect(i, messages/(2*connections)+1))
	}
	for i := range s.faults {
		p.Faults = append(p.Faults, d.named(&s.faults[i]))
	}
	for range d.pick("", "faults", func() int64 { return 0 }) {
		p.Faults = append(p.Faults, d.fault())
	}
	return p
}

// pick returns what the scenario says, at a place or everywhere, or what other draws.
func (d *drawer) pick(place, name string, other func() int64) int64 {
	p, ok := d.s.pins[place+name]
	if !ok {
		p, ok = d.s.pins[name]
	}
	if !ok {
		return other()
	}
	return d.within(p)
}

func (d *drawer) within(p pinned) int64 { return p.low + d.Int64N(p.high-p.low+1) }

func (d *drawer) oneOf(v ...int64) int64 { return v[d.IntN(len(v))] }

// upTo draws from 0 to n, and 0 as often as not.
func (d *drawer) upTo(n int64) int64 {
	if d.IntN(2) == 0 {
		return 0
	}
	return d.Int64N(n + 1)
}

func (d *drawer) rail(place string) RailPlan {
	get := func(name string, other func() int64) int64 { return d.pick(place, name, other) }
	probability := func(name string, most int64) float64 {
		return float64(get(name, func() int64 { return d.upTo(most) })) / 10000
	}
	return RailPlan{
		MTU:    verbs.MTU(get("mtu", func() int64 { return d.oneOf(1, 3, 5, 5) })),
		Window: int(get("window", func() int64 { return d.oneOf(4, 16, 64, 128) })),
		Queue:  int(get("queue", func() int64 { return d.oneOf(16, 64, 1024) })),
		Impairment: softnic.Impairment{
			Loss: probability("loss", 200), Duplicate: probability("duplicate", 200),
			Reorder: probability("reorder", 500), Corrupt: probability("corrupt", 100),
			Delay:  time.Duration(get("delay", func() int64 { return 500 + d.Int64N(20_000) })),
			Jitter: time.Duration(get("jitter", func() int64 { return d.upTo(5000) })),
			Rate:   float64(get("rate", func() int64 { return d.oneOf(0, 1e9, 5e9, 50e9) })),
		},
		PortRate:  float64(get("port-rate", func() int64 { return d.oneOf(0, 0, 0, 1e9, 10e9) })),
		PortQueue: int(get("port-queue", func() int64 { return d.oneOf(16<<10, 64<<10, 256<<10) })),
		Paths:     int(get("paths", func() int64 { return d.oneOf(1, 1, 2, 4) })),
		PathRate:  float64(get("path-rate", func() int64 { return d.oneOf(0, 0, 0, 1e9, 10e9) })),
		PathQueue: int(get("path-queue", func() int64 { return d.oneOf(16<<10, 64<<10, 256<<10) })),
		Skew:      time.Duration(get("skew", func() int64 { return d.upTo(10_000) })),
	}
}

func (d *drawer) work() {
	w := &d.p.Work
	get := func(name string, other func() int64) int { return int(d.pick("", name, other)) }
	percent := func(name string, v ...int64) int { return get(name, func() int64 { return d.oneOf(v...) }) / 100 }
	w.Ops = d.s.ops
	w.Sizes = [2]int{0, int(d.oneOf(64, 2<<10, 2<<10, 8<<10, 8<<10, 16<<10, 64<<10, maxMessage))}
	if p, ok := d.s.pins["sizes"]; ok {
		w.Sizes = [2]int{int(p.low), int(p.high)}
	}
	w.Burst = get("burst", func() int64 { return d.oneOf(1, 4, 16, 64) })
	w.Gap = time.Duration(get("gap", func() int64 { return d.oneOf(0, 5_000, 20_000, 100_000) }))
	w.Batch = get("batch", func() int64 { return d.oneOf(1, 4, 32, 64) })
	w.Polls = time.Duration(get("polls", func() int64 { return d.oneOf(0, 0, 2_000, 20_000) }))
	w.Inline = percent("inline", 0, 1000, 5000)
	w.Fence = percent("fence", 0, 0, 500, 3000)
	w.Silent = percent("unsignaled", 0, 3000, 9000)
	w.Room = get("room", func() int64 { return 3 })
	w.Scatter = percent("scatter", 0, 1000, 5000)
}

func (d *drawer) connect(i, messages int) ConnectPlan {
	place := fmt.Sprintf("connection %d ", i)
	get := func(name string, other func() int64) int64 { return d.pick(place, name, other) }
	hosts := int64(d.p.Hosts)
	c := ConnectPlan{
		// Every host is joined to the last one: with three, two of them meet there.
		From:            int(get("from", func() int64 { return int64(i) % (hosts - 1) })),
		To:              int(get("to", func() int64 { return hosts - 1 })),
		Lanes:           int(get("lanes", func() int64 { return d.oneOf(1, 2, 3, 4, 4, 8, 1+d.Int64N(16)) })),
		TrackSingleLane: get("track", func() int64 { return d.oneOf(0, 0, 1) }) != 0,
		Scheme:          ibverbx.Scheme(get("scheme", func() int64 { return d.Int64N(3) })),
		Policy:          ibverbx.Policy(get("policy", func() int64 { return d.Int64N(4) })),
		Fragment:        uint32(get("fragment", func() int64 { return d.oneOf(0, 0, 256, 1024, 4096) })),
	}
	// What a scenario names counts round.
	c.From, c.To = c.From%d.p.Hosts, c.To%d.p.Hosts
	if c.Fragment > 0 && d.p.Work.Sizes[1]/int(c.Fragment) > 256 {
		c.Fragment = uint32(d.p.Work.Sizes[1] / 256)
	}
	for side := range c.Ends {
		c.Ends[side] = d.end(fmt.Sprintf("end %d%c ", i, 'a'+side), messages)
	}
	return c
}

func (d *drawer) end(place string, messages int) EndPlan {
	get := func(name string, v ...int64) int {
		return int(d.pick(place, name, func() int64 { return d.oneOf(v...) }))
	}
	e := EndPlan{
		SendDepth: get("send-depth", 1, 4, 16, 64, 256), RecvDepth: get("recv-depth", 1, 4, 16, 64),
		LaneDepth: get("lane-depth", 1, 2, 8, 32, 128), NotifyDepth: get("notify-depth", 1, 2, 8, 64),
		SignalInterval: get("signal-interval", 1, 4, 16, 64),
	}
	e.Receives = min(int(d.pick(place, "receives", func() int64 { return 1 + d.Int64N(int64(e.RecvDepth)) })), e.RecvDepth)
	e.Messages = int(d.pick(place, "messages", func() int64 { return int64(messages) }))
	return e
}

// named makes a fault that the scenario names; what it leaves open is drawn.
func (d *drawer) named(l *faultLine) Fault {
	f := d.place(l.kind)
	get := func(name string, v *int) {
		if p, ok := l.pins[name]; ok {
			*v = int(d.within(p))
		}
	}
	get("rail", &f.Rail)
	get("host", &f.From)
	get("from", &f.From)
	get("to", &f.To)
	get("connection", &f.Connect)
	get("lane", &f.Lane)
	get("path", &f.Path)
	get("after", &f.After)
	get("times", &f.Times)
	if l.end >= 0 {
		f.Connect, f.End = l.end/2, l.end%2
	}
	for _, v := range []struct {
		name string
		to   *time.Duration
	}{{"at", &f.At}, {"for", &f.For}} {
		if p, ok := l.pins[v.name]; ok {
			*v.to = time.Duration(d.within(p))
		}
	}
	return f
}

// gentle are the faults that a seed chooses from if the scenario does not say: without
// failover those that end a lane end its VirtualQP, so most are of the others.
var gentle = []FaultKind{
	FaultCut, FaultBlackHole, FaultPort, FaultFlap, FaultHold, FaultSlow, FaultRefuse, FaultStarve, FaultPause,
	FaultCut, FaultBlackHole, FaultPort, FaultFlap, FaultHold, FaultSlow, FaultRefuse, FaultStarve, FaultPause,
	FaultQP, FaultQP, FaultReset, FaultDead, FaultBroken, FaultBadKey, FaultCQ, FaultCrash,
	FaultPathCut, FaultPathSlow,
}

// rough are those with failover, which survives nearly everything.
var rough = []FaultKind{
	FaultCut, FaultBlackHole, FaultPort, FaultFlap, FaultHold, FaultSlow, FaultRefuse, FaultStarve, FaultPause,
	FaultQP, FaultQP, FaultReset, FaultDead, FaultBroken,
	FaultQP, FaultQP, FaultReset, FaultDead, FaultBroken, FaultBadKey, FaultCQ, FaultCrash,
	FaultControlCut, FaultControlDelay, FaultControlRepeat, FaultControlReorder, FaultControlLoss,
	FaultPathCut, FaultPathCut, FaultPathSlow, FaultRestart,
}

// fault draws a fault.
func (d *drawer) fault() Fault {
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
func (d *drawer) place(k FaultKind) Fault {
	f := Fault{Kind: k, At: time.Duration(d.Int64N(d.oneOf(20_000, 100_000, 500_000, 2_000_000)))}
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
		// Now and then longer than RC lives without an answer.
		f.For = time.Duration(d.oneOf(d.Int64N(200_000), d.Int64N(2_000_000), d.Int64N(20_000_000), d.Int64N(80_000_000)))
		if d.IntN(10) == 0 && f.outage() {
			f.For = 700 * time.Millisecond
		}
	}
	return f
}
