package measure

import (
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"ibverbx/reliable"
	"ibverbx/softnic"
)

// In the mixed scenarios hosts with short and long round trips send to one.
const (
	mixedSenders = 8
	mixedBytes   = 160 << 20
	// mixedDelay is the one-way delay of every other sender. The others have hostDelay.
	mixedDelay = 100 * time.Microsecond
)

func mixedScenarios() (all []Scenario) {
	for _, c := range []struct {
		name, with string
		cfg        *reliable.Config
		aims       []Aim
	}{
		{"fixed", "fixed windows", hostReliable(), nil},
		{"swift", "paths that aim at a round trip of 60 us (Swift)", withTarget(), []Aim{{Figure: "goodput_ratio", AtLeast: 0.7}}},
		{"unpaced", "the same without pacing", withoutPacing(), nil},
	} {
		all = append(all, Scenario{
			Name:  "reliable-mixed-rtt-" + c.name,
			About: "4 hosts at a round trip of 20 us and 4 at 200 us send to one at 100 Gb/s with " + c.with + "; the goodput is that of the slowest host over its share.",
			Aims:  c.aims,
			run:   func(o Options, r *Result) error { return runMixed(o, r, c.cfg) },
		})
	}
	return all
}

// runMixed measures what each sender gets of its share, at most all of it: the last ones have the link to
// themselves.
func runMixed(o Options, r *Result, cfg *reliable.Config) error {
	network := softnic.Impairment{Delay: hostDelay, Rate: hostRate}
	return inWorld(worldConfig{Seed: o.Seed, Queue: 1 << 16, Impairment: network}, func(w *world) error {
		to, err := w.addReceiver(cfg)
		if err != nil {
			return err
		}
		rng := rand.New(rand.NewPCG(o.Seed, 2))
		var from *host
		for i := range mixedSenders {
			if from, err = w.addHost(cfg); err != nil {
				return err
			}
			if i%2 == 1 {
				far := softnic.Impairment{Delay: mixedDelay, Rate: hostRate}
				if err := errors.Join(w.link.Impair(from.nic, to.nic, far), w.link.Impair(to.nic, from.nic, far)); err != nil {
					return err
				}
			}
			if _, err := w.addFlow(flowConfig{From: from, To: to, Bytes: o.bytes(mixedBytes) / mixedSenders, Start: start(rng)}); err != nil {
				return err
			}
		}
		if err := w.run(); err != nil {
			return err
		}
		r.measure(w, hostRate)
		for _, f := range w.flows {
			took := float64(f.last-f.first) / 1e9
			r.FlowRatios = append(r.FlowRatios, float64(f.bytes)/took/capacity(hostRate)*mixedSenders)
		}
		r.GoodputRatio = min(slices.Min(r.FlowRatios), 1)
		r.QueueBytes = float64(w.link.LongestQueue(to.nic))
		return nil
	})
}
