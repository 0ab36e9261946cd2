package measure

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"ibverbx/reliable"
	"ibverbx/softnic"
)

// contest describes flows between different hosts through one link, with the defaults of package reliable unless stated otherwise. They
// are measured during a span of time.
type contest struct {
	Rate         float64       // of the link, in bytes per second
	Delay        time.Duration // one way
	Loss         float64       // share of lost packets, both ways
	Queue        int           // bytes that may wait for the link
	Flows        int
	Depth        int // messages of 64 KiB that a flow has outstanding; zero means 128
	MessageBytes int // zero means 64 KiB
	Ports        int // equal links that a hash picks, Rate together; zero means 1
	// Config is the configuration of the flows. Nil means the defaults.
	Config *reliable.Config
	Apart  time.Duration // between the starts of two flows
	Late   time.Duration // additional delay of the last flow
	Begin  time.Duration // earliest start of the span
	From   time.Duration // start of the span after the start of the last flow
	For    time.Duration // length of the span
	// Small adds 4 KiB messages beside the first flow, by another QP of its host, at this interval. Their
	// latency is measured.
	Small time.Duration
	// Other is the configuration of the first flow. Nil means the defaults.
	Other *reliable.Config
	// Meets is called when the last flow starts. Nil means nothing.
	Meets func(c *contested) error
}

// contested is a running contest.
type contested struct {
	*world
	contest
	begin time.Duration // start of the last flow
	bulk  []*flow
	small *flow
	marks []mark
}

// mark is a snapshot of a contest.
type mark struct {
	at     int64
	bytes  []int    // payload of completed messages, by flow
	landed []uint64 // arrived packets, by flow
	flying float64  // bytes in the network beyond the capacity of the idle link
}

// trip is the round trip time of the idle link.
func (c *contest) trip() time.Duration { return 2 * c.Delay }

// run builds a world, runs the contest and passes it to do.
func (c contest) run(o Options, do func(*contested) error) error {
	network := softnic.Impairment{Delay: c.Delay, Loss: c.Loss}
	// The packet queue of a NIC must hold the backlog of the link.
	wc := worldConfig{Seed: o.Seed, Queue: 1 << 17, Impairment: network}
	return inWorld(wc, func(w *world) error {
		x := &contested{world: w, contest: c}
		if err := x.build(); err != nil {
			return err
		}
		if err := w.runFor(x.begin + c.From + c.For); err != nil {
			return err
		}
		return do(x)
	})
}

func (c *contested) build() error {
	var nics [2][]*softnic.NIC
	for i := range c.Flows {
		cfg := &reliable.Config{}
		if c.Config != nil {
			cfg = c.Config
		}
		if i == 0 && c.Other != nil {
			cfg = c.Other
		}
		var fc flowConfig
		var err error
		if fc.From, err = c.addHost(cfg); err == nil {
			fc.To, err = c.addHost(cfg)
		}
		if err != nil {
			return err
		}
		// The seed moves each start by up to a round trip.
		c.begin = settle + time.Duration(i)*c.Apart + time.Duration(mix(c.seed, uint64(i))%uint64(c.trip()))
		if i == c.Flows-1 {
			c.begin += c.Late
		}
		fc.Start, fc.Depth, fc.MessageBytes = c.begin, c.Depth, c.MessageBytes
		f, err := c.addFlow(fc)
		if err != nil {
			return err
		}
		c.bulk = append(c.bulk, f)
		nics[0], nics[1] = append(nics[0], fc.From.nic), append(nics[1], fc.To.nic)
	}
	if c.Small > 0 {
		var err error
		if c.small, err = c.addFlow(flowConfig{From: c.bulk[0].from.host, To: c.bulk[0].to.host, MessageBytes: victimBytes, Every: c.Small, Depth: 4096, Start: c.begin + c.From}); err != nil {
			return err
		}
	}
	n := max(c.Ports, 1)
	ports := slices.Repeat([]softnic.Path{{Rate: c.Rate / float64(n), Queue: c.Queue}}, n)
	if err := errors.Join(c.link.SharePaths(nics[0], nics[1], ports...), c.link.SharePaths(nics[1], nics[0], ports...)); err != nil {
		return err
	}
	c.begin += c.Begin
	if c.Meets != nil {
		c.at(c.begin, func() error { return c.Meets(c) })
	}
	for at := c.begin; at <= c.begin+c.From+c.For; at += c.trip() {
		c.at(at, c.note)
	}
	return nil
}

// mix hashes both numbers.
func mix(seed, i uint64) uint64 {
	x := (seed*64 + i + 1) * 0x9e3779b97f4a7c15
	x ^= x >> 29
	return x * 0xbf58476d1ce4e5b9 >> 20
}

// note adds a mark.
func (c *contested) note() error {
	m := mark{at: c.now, flying: -c.Rate * c.Delay.Seconds()}
	for _, f := range c.bulk {
		s := c.link.Stats(f.from.host.nic, f.to.host.nic)
		m.bytes = append(m.bytes, f.bytes)
		m.landed = append(m.landed, s.Delivered)
		m.flying += float64(s.Sent-s.Delivered-s.Lost-s.Overflow) * (mtu + softnic.PacketOverhead)
	}
	c.marks = append(c.marks, m)
	return nil
}

// span returns the marks between two times after the start of the last flow.
func (c *contested) span(from, to time.Duration) (first, last *mark) {
	n := int(from / c.trip())
	k := min(int(to/c.trip()), len(c.marks)-1)
	return &c.marks[n], &c.marks[k]
}

// shares returns each flow's share of the link between two times.
func (c *contested) shares(from, to time.Duration) (shares []float64) {
	a, b := c.span(from, to)
	whole := capacity(c.Rate) * float64(b.at-a.at) / 1e9
	for i := range b.bytes {
		shares = append(shares, float64(b.bytes[i]-a.bytes[i])/whole)
	}
	return shares
}

// jain is Jain's index of fairness: 1 if all shares are equal, 1/n if one flow has everything.
func jain(shares []float64) float64 {
	sum, squares := 0.0, 0.0
	for _, s := range shares {
		sum += s
		squares += s * s
	}
	if squares == 0 {
		return 0
	}
	return sum * sum / (float64(len(shares)) * squares)
}

func total(shares []float64) (sum float64) {
	for _, s := range shares {
		sum += s
	}
	return sum
}

// joins returns the number of round trips after the start of the last flow until eight in a row bring it 80 % of its
// share.
func (c *contested) joins() float64 {
	const row = 8
	last := c.Flows - 1
	fair := 0.8 * row * capacity(c.Rate) / mtu * c.trip().Seconds() / float64(c.Flows)
	for i := row; i < len(c.marks); i++ {
		if float64(c.marks[i].landed[last]-c.marks[i-row].landed[last]) >= fair {
			return float64(i)
		}
	}
	return float64(len(c.marks))
}

// queue returns the median number of bytes queued for the link during the span.
func (c *contested) queue() float64 {
	var all []float64
	for _, m := range c.marks[int(c.From/c.trip()):] {
		all = append(all, m.flying)
	}
	slices.Sort(all)
	return max(all[len(all)/2], 0)
}

// fill fills in a result.
func (c *contested) fill(r *Result) {
	r.FlowRatios = c.shares(c.From, c.From+c.For)
	r.measure(c.world, c.Rate)
	r.GoodputRatio = min(total(r.FlowRatios), 1) // whole messages count
	r.GoodputGbps = r.GoodputRatio * capacity(c.Rate) * 8e-9
	r.Fairness, r.JoinTrips, r.QueueBytes = jain(r.FlowRatios), c.joins(), c.queue()
	if c.small != nil {
		r.Latency = c.small.latency.quantiles()
	}
}

// The links of the contests.
var (
	slowLink = contest{Rate: 125e6, Delay: 500 * time.Microsecond, Queue: 32 << 20, Flows: 1, From: 100 * time.Millisecond, For: time.Second}
	hostLink = contest{Rate: hostRate, Delay: hostDelay, Queue: 64 << 20, From: time.Millisecond, For: 20 * time.Millisecond}
	fastLink = contest{Rate: fastRate, Delay: fastDelay, Queue: 64 << 20, Flows: 1, From: 4 * time.Millisecond, For: 16 * time.Millisecond}
)

// congestionScenarios are the defaults of package reliable where its congestion control matters.
func congestionScenarios() (all []Scenario) {
	add := func(name, about string, c contest, aims ...Aim) {
		all = append(all, Scenario{Name: "reliable-cc-" + name, About: about, Aims: aims, run: func(o Options, r *Result) error {
			return c.run(o, func(x *contested) error { x.fill(r); return nil })
		}})
	}
	bulk := slowLink
	bulk.Small = 3 * time.Millisecond
	add("bulk", "A flow on a link of 1 Gb/s, RTT 1 ms, with a queue of 256 ms; the latency is that of 4 KiB messages beside it.", bulk,
		Aim{Figure: "goodput_ratio", AtLeast: 0.97}, Aim{Figure: "latency_us.p99", Below: 2500})
	for _, l := range []struct {
		percent string
		loss    float64
		aim     float64
	}{{"0", 0, 0.99}, {"0.1", 0.001, 0.985}, {"1", 0.01, 0.90}, {"5", 0.05, 0.6}} {
		c := fastLink
		c.Loss = l.loss
		add("400g-loss-"+l.percent, fmt.Sprintf("Milliseconds 4 to 20 of a flow at 400 Gb/s, RTT 20 us, %s%% of all packets lost.", l.percent), c,
			Aim{Figure: "goodput_ratio", AtLeast: l.aim})
	}
	for _, n := range []int{2, 4, 16} {
		for _, apart := range []time.Duration{0, 300 * time.Microsecond} {
			least, queue := 0.95, 1.0
			if n == 16 {
				least, queue = 0.85, 4
			}
			c, how := hostLink, ""
			if c.Flows, c.Apart = n, apart; apart > 0 {
				how = "-apart"
				if n == 16 {
					least = 0.75
				}
			}
			add(fmt.Sprintf("flows-%d%s", n, how), fmt.Sprintf("%d flows through a link of 100 Gb/s, RTT 20 us, begun %v apart: the fairness of 20 ms.", n, apart), c,
				Aim{Figure: "fairness", AtLeast: least}, Aim{Figure: "queue_bytes", Below: queue * (1 << 20)}, Aim{Figure: "goodput_ratio", AtLeast: 0.97})
		}
	}
	for _, n := range []int{1, 3, 15} {
		c := hostLink
		c.Flows, c.Meets = n+1, nil
		c.From, c.For = 0, 10*time.Millisecond
		c.Late = 5 * time.Millisecond
		add(fmt.Sprintf("join-%d", n), fmt.Sprintf("A flow joins %d others on a link of 100 Gb/s, RTT 20 us: round trips until it has 80%% of its share.", n), c,
			Aim{Figure: "join_trips", Below: 20.5})
	}
	far := slowLink
	far.Delay, far.From, far.For = 50*time.Millisecond, 2*time.Second, 5*time.Second
	far.Depth = 512
	add("far", "A flow on a link of 1 Gb/s, RTT 100 ms.", far, Aim{Figure: "goodput_ratio", AtLeast: 0.65})
	all = append(all, movedScenarios()...)
	return append(all, wholeScenarios()...)
}

// wholeScenarios are whole transfers, and a flow beside a fixed window.
func wholeScenarios() (all []Scenario) {
	beside := hostLink
	beside.Flows, beside.Other = 2, &reliable.Config{WindowBytes: 4 << 20}
	all = append(all, Scenario{
		Name:  "reliable-cc-beside-fixed",
		About: "A flow beside one with a fixed window of 4 MiB on a link of 100 Gb/s, RTT 20 us; the goodput is what it gets of the link.",
		run: func(o Options, r *Result) error {
			return beside.run(o, func(x *contested) error { x.fill(r); r.GoodputRatio = r.FlowRatios[1]; return nil })
		},
	})
	network := softnic.Impairment{Delay: fastDelay, Rate: fastRate}
	for _, l := range []struct {
		percent   string
		loss, aim float64
	}{{"0", 0, 0.98}, {"0.1", 0.001, 0.97}, {"1", 0.01, 0.88}} {
		network.Loss = l.loss
		all = append(all, Scenario{
			Name:  "reliable-cc-400g-whole-" + l.percent,
			About: fmt.Sprintf("256 MiB from the start to the end at 400 Gb/s, RTT 20 us, %s%% of all packets lost.", l.percent),
			Aims:  []Aim{{Figure: "goodput_ratio", AtLeast: l.aim}},
			run: func(network softnic.Impairment) func(o Options, r *Result) error {
				return func(o Options, r *Result) error { return runFast(o, r, &reliable.Config{}, network, fastBytes) }
			}(network),
		})
	}
	return append(all, Scenario{
		Name: "reliable-cc-ecmp", About: "8 flows of 16 paths each over 8 uplinks that a hash picks; the goodput is that of the worst flow.",
		Aims: []Aim{{Figure: "goodput_ratio", AtLeast: 0.9}},
		run:  func(o Options, r *Result) error { return runECMP(o, r, &reliable.Config{}) },
	})
}

// movedScenarios make round trips longer while a flow runs.
func movedScenarios() []Scenario {
	longer := func(late time.Duration) func(c *contested) error {
		return func(c *contested) error {
			f := c.bulk[0]
			return f.bothWays(func(from, to *port) error {
				return c.link.Impair(from.host.nic, to.host.nic, softnic.Impairment{Delay: late})
			})
		}
	}
	c := slowLink
	c.Begin, c.From, c.For = 500*time.Millisecond, 0, 600*time.Millisecond
	c.Meets = longer(3 * c.Delay)
	step := Scenario{
		Name: "reliable-cc-longer", About: "A flow on a link of 1 Gb/s whose RTT changes from 1 to 3 ms: the share of 100 ms, and of the 500 ms after.",
		Aims: []Aim{{Figure: "goodput_ratio", AtLeast: 0.95}, {Figure: "first_ratio", AtLeast: 0.6}},
		run: func(o Options, r *Result) error {
			return c.run(o, func(x *contested) error {
				x.fill(r)
				first := total(x.shares(0, 100*time.Millisecond))
				r.FirstRatio, r.GoodputRatio = &first, total(x.shares(100*time.Millisecond, 600*time.Millisecond))
				return nil
			})
		},
	}
	return []Scenario{step, {
		Name: "reliable-cc-rtt-step", About: "64 MiB at 400 Gb/s during which the round trip time becomes ten times as long, 200 us.",
		Aims: []Aim{{Figure: "goodput_ratio", AtLeast: 0.5}},
		run:  func(o Options, r *Result) error { return runStep(o, r, &reliable.Config{}) },
	}}
}
