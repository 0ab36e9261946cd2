package measure

import (
	"fmt"
	"math/rand/v2"
	"time"

	"ibverbx/reliable"
	"ibverbx/softnic"
)

const (
	deadPaths = 32
	deadBytes = 64 << 20
	// fabric is the number of equal ways through the network, large enough that flows rarely share one.
	fabric = 4096
)

// deadPathScenarios are transfers during which one path dies.
func deadPathScenarios() []Scenario {
	dies := func(read bool) func(o Options, r *Result) error {
		return func(o Options, r *Result) error {
			// The seed decides which path dies, and when in the middle half of the transfer.
			rng := rand.New(rand.NewPCG(o.Seed, 1))
			return runDeadPath(o, r, read, rng.IntN(deadPaths), 0.25+rng.Float64()/2)
		}
	}
	return []Scenario{{
		Name:  "reliable-path-dead",
		About: "64 MiB at 400 Gb/s, RTT 20 us, over 32 paths, one of which dies on the way; cost_us is against the same without the death.",
		Aims:  []Aim{{Figure: "cost_us", Below: 1000}},
		run:   dies(false),
	}, {
		Name:  "reliable-path-dead-read",
		About: "The same with READs.",
		Aims:  []Aim{{Figure: "cost_us", Below: 1000}},
		run:   dies(true),
	}}
}

// runDeadPath runs the transfer twice. The first run measures its length. In the second a path dies
// after a share of that time.
func runDeadPath(o Options, r *Result, read bool, path int, share float64) error {
	var whole Result
	if err := runSpread(o, &whole, read, path, 0); err != nil {
		return err
	}
	if err := runSpread(o, r, read, path, time.Duration(share*whole.VirtualUS*1e3)+1); err != nil {
		return err
	}
	cost := r.VirtualUS - whole.VirtualUS
	r.CostUS = &cost
	return nil
}

// runSpread moves bytes over paths that take different ways. A death above 0 is the time at which one path starts to lose all packets.
func runSpread(o Options, r *Result, read bool, path int, death time.Duration) error {
	cfg := fastReliable()
	cfg.Paths = deadPaths
	wc := worldConfig{Seed: o.Seed, Impairment: softnic.Impairment{Delay: fastDelay, Rate: fastRate}}
	return runPair(r, wc, cfg, flowConfig{Read: read, Bytes: o.bytes(deadBytes)}, func(w *world, f *flow) error {
		if death > 0 {
			w.at(settle+death, func() error { return f.killPath(path) })
		}
		return f.spread()
	})
}

// spread gives the paths of a flow different ways through the network.
func (f *flow) spread() error {
	return f.bothWays(func(a, b *port) error {
		return f.world.link.SetPaths(a.host.nic, b.host.nic, make([]softnic.Path, fabric)...)
	})
}

// killPath makes a path lose all packets in both directions, forever: the first path from index on whose way is not shared.
func (f *flow) killPath(index int) error {
	path, err := f.lonely(index)
	if err != nil {
		return err
	}
	return f.bothWays(func(from, to *port) error {
		return f.world.link.SetPath(from.host.nic, to.host.nic, way(from, to, path), softnic.Path{Cut: true})
	})
}

// way returns a path's way through the network.
func way(from, to *port, path int) int {
	p := from.qp.(reliable.StatsReader).Paths()[path]
	return from.host.world.link.PathOf(from.host.nic, to.host.nic, 0, p.FlowLabel)
}

// lonely returns the first path from index on that does not share its way to the receiver.
func (f *flow) lonely(index int) (int, error) {
	users, from, to := make(map[int]int), f.source(), f.sink()
	paths := len(to.qp.(reliable.StatsReader).Paths())
	for i := range paths {
		users[way(from, to, i)]++
	}
	for k := range paths {
		if i := (index + k) % paths; users[way(from, to, i)] == 1 {
			return i, nil
		}
	}
	return 0, fmt.Errorf("each of %d paths shares its way with another", paths)
}
