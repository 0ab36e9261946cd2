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
	// fabric is how many equal ways lead through the network: so many that flows rarely
	// share one.
	fabric = 4096
)

// deadPathScenarios let one path die in the middle of a transfer.
func deadPathScenarios() []Scenario {
	return []Scenario{{
		Name:  "reliable-path-dead",
		About: "64 MiB at 400 Gb/s, RTT 20 us, over 32 paths, one of which dies on the way; cost_us is against the same without the death.",
		Aims:  []Aim{{Figure: "cost_us", Below: 1000}},
		run: func(o Options, r *Result) error {
			// The seed says which path it is, and when, in the middle half.
			rng := rand.New(rand.NewPCG(o.Seed, 1))
			return runDeadPath(o, r, rng.IntN(deadPaths), 0.25+rng.Float64()/2)
		},
	}}
}

// runDeadPath runs the transfer twice: as it is, to learn how long it takes, and with the death
// of a path after a share of that time.
func runDeadPath(o Options, r *Result, path int, share float64) error {
	var whole Result
	if err := runSpread(o, &whole, path, 0); err != nil {
		return err
	}
	if err := runSpread(o, r, path, time.Duration(share*whole.VirtualUS*1e3)+1); err != nil {
		return err
	}
	cost := r.VirtualUS - whole.VirtualUS
	r.CostUS = &cost
	return nil
}

// runSpread moves bytes over paths that go different ways, and makes that of one path a black
// hole at a time, if it is above 0.
func runSpread(o Options, r *Result, path int, death time.Duration) error {
	cfg := fastReliable()
	cfg.Paths = deadPaths
	wc := WorldConfig{Seed: o.Seed, Impairment: softnic.Impairment{Delay: fastDelay, Rate: fastRate}}
	return runPair(r, wc, cfg, FlowConfig{Bytes: o.bytes(deadBytes)}, func(w *World, f *Flow) error {
		if death > 0 {
			w.At(death, func() error { return f.killPath(path) })
		}
		return f.bothWays(func(a, b *port) error {
			return w.Link.SetPaths(a.host.NIC, b.host.NIC, make([]softnic.Path, fabric)...)
		})
	})
}

// bothWays calls do for each direction of the flow.
func (f *Flow) bothWays(do func(from, to *port) error) error {
	if err := do(&f.from, &f.to); err != nil {
		return err
	}
	return do(&f.to, &f.from)
}

// killPath makes the ways of one path through the network lose everything, in both directions
// and for good. It takes the first from index on that shares its way with no other.
func (f *Flow) killPath(index int) error {
	path, err := f.lonely(index)
	if err != nil {
		return err
	}
	return f.bothWays(func(from, to *port) error {
		a, b := from.host.NIC, to.host.NIC
		qpn := to.qp.(reliable.Counted).Paths()[path].QPN
		return f.world.Link.SetPath(a, b, f.world.Link.PathOf(a, b, qpn, 0), softnic.Path{Cut: true})
	})
}

// lonely returns the first path from index on whose way to the receiver no other path takes.
func (f *Flow) lonely(index int) (int, error) {
	users := make(map[int]int)
	paths := f.to.qp.(reliable.Counted).Paths()
	way := func(i int) int { return f.world.Link.PathOf(f.from.host.NIC, f.to.host.NIC, paths[i].QPN, 0) }
	for i := range paths {
		users[way(i)]++
	}
	for k := range paths {
		if i := (index + k) % len(paths); users[way(i)] == 1 {
			return i, nil
		}
	}
	return 0, fmt.Errorf("each of %d paths shares its way with another", len(paths))
}
