package measure

import (
	"math/rand/v2"
	"time"

	"ibverbx/reliable"
	"ibverbx/softnic"
)

// The hosts of the incast and ECMP scenarios have 100 Gb/s and a round trip of 20 us.
const (
	hostRate  = 12.5e9
	hostDelay = 10 * time.Microsecond
)

// In the incast scenarios 15 hosts send to one, through a switch. The queue of the switch holds
// everything that fixed windows allow, so nothing is lost.
const (
	incastSenders = 15
	incastBytes   = 320 << 20
	incastQueue   = 64 << 20
)

// The victim of incast posts a small message at regular intervals.
const (
	victimBytes = 4 << 10
	victimEvery = 25 * time.Microsecond
	// victimP999 is the aim for its p99.9 with credits, in microseconds: a fifth of that of RC.
	// TestVictim compares the two.
	victimP999 = 258
)

// hostReliable configures package reliable for these hosts: a window of three times the bytes that the link
// holds in a round trip, probes for short round trips, and no credits.
func hostReliable() *reliable.Config {
	return &reliable.Config{NoCredits: true, WindowBytes: 768 << 10, MinProbe: 50_000}
}

func incastScenarios() (all []Scenario) {
	for _, c := range []struct {
		name, with string
		cfg        *reliable.Config
		aims       []Aim
	}{
		{"rc-incast-15to1", "RC QPs of the NIC", nil, nil},
		{"reliable-incast-15to1-fixed", "fixed windows and no credits", hostReliable(), []Aim{{Figure: "goodput_ratio", AtLeast: 0.9}}},
		{"reliable-incast-15to1-credits", "the defaults of package reliable, which are receiver credits", &reliable.Config{}, []Aim{
			{Figure: "goodput_ratio", AtLeast: 0.98}, {Figure: "latency_us.p999", Below: victimP999},
		}},
		{"reliable-incast-15to1-free", "the defaults but no credits", &reliable.Config{NoCredits: true}, []Aim{
			{Figure: "goodput_ratio", AtLeast: 0.9},
		}},
	} {
		all = append(all, Scenario{
			Name: c.name, Aims: c.aims,
			About: "15 hosts send 320 MiB to one at 100 Gb/s with " + c.with + "; the latency is that of 4 KiB messages of another QP to the same host.",
			run:   func(o Options, r *Result) error { return runIncast(o, r, c.cfg) },
		})
	}
	return all
}

// fan is hosts that send to one, through a switch whose queue holds incastQueue bytes.
type fan struct {
	*world
	to      *host
	senders []*host
}

// inFan builds a world with a number of senders that share bytes, and calls do. With a nil cfg the hosts use
// RC. A sender begins within a round trip of the idle network, by the seed. shape, if not nil, is called for
// each sender before it is connected.
func inFan(o Options, cfg *reliable.Config, senders, bytes int, shape func(f *fan, i int) error, do func(f *fan) error) error {
	network := softnic.Impairment{Delay: hostDelay, Rate: hostRate}
	return inWorld(worldConfig{Seed: o.Seed, Window: rcWindow, Queue: 1 << 16, Impairment: network}, func(w *world) error {
		f := &fan{world: w}
		var err error
		if f.to, err = w.addHost(cfg); err != nil {
			return err
		}
		if err := w.link.Bottleneck(f.to.nic, hostRate, incastQueue); err != nil {
			return err
		}
		rng := rand.New(rand.NewPCG(o.Seed, 2))
		for i := range senders {
			from, err := w.addHost(cfg)
			if err != nil {
				return err
			}
			f.senders = append(f.senders, from)
			if shape != nil {
				if err := shape(f, i); err != nil {
					return err
				}
			}
			start := settle + time.Duration(rng.Int64N(int64(2*hostDelay)))
			if _, err := w.addFlow(flowConfig{From: from, To: f.to, Bytes: o.bytes(bytes) / senders, Start: start}); err != nil {
				return err
			}
		}
		return do(f)
	})
}

// measure runs the world, and fills a result with the sum of all flows and the longest queue.
func (f *fan) measure(r *Result) error {
	if err := f.run(); err != nil {
		return err
	}
	r.measure(f.world, hostRate)
	r.QueueBytes = float64(f.link.LongestQueue(f.to.nic))
	return nil
}

// runIncast measures the goodput of all flows together, and the latency of the victim.
func runIncast(o Options, r *Result, cfg *reliable.Config) error {
	return inFan(o, cfg, incastSenders, incastBytes, nil, func(f *fan) error {
		victim, err := f.addFlow(flowConfig{From: f.senders[incastSenders-1], To: f.to, MessageBytes: victimBytes, Every: victimEvery, Depth: 512, Start: settle})
		if err != nil {
			return err
		}
		if err := f.measure(r); err != nil {
			return err
		}
		r.Latency = victim.latency.quantiles()
		return nil
	})
}
