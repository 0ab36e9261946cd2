package measure

import (
	"errors"
	"slices"

	"ibverbx/reliable"
	"ibverbx/softnic"
)

// The network of the ECMP scenarios: eight hosts on one switch send to eight on another, over eight
// uplinks. Hosts and uplinks have 100 Gb/s. The switch picks the uplink of a QP by a hash.
const (
	ecmpFlows = 8
	ecmpBytes = 256 << 20
	ecmpQueue = 16 << 20 // bytes that may wait for an uplink
)

func ecmpScenarios() []Scenario {
	return []Scenario{{
		Name:  "reliable-ecmp-collision",
		About: "8 flows of package reliable, 16 paths each, over 8 uplinks that a hash picks; the goodput is that of the worst flow.",
		Aims:  []Aim{{Figure: "goodput_ratio", AtLeast: 0.9}},
		run:   func(o Options, r *Result) error { return runECMP(o, r, hostReliable()) },
	}, {
		Name:  "single-ecmp-collision",
		About: "8 flows of one RC QP each over 8 uplinks that a hash picks; the goodput is that of the worst flow.",
		run:   func(o Options, r *Result) error { return runECMP(o, r, nil) },
	}}
}

func runECMP(o Options, r *Result, cfg *reliable.Config) error {
	network := softnic.Impairment{Delay: hostDelay, Rate: hostRate}
	return inWorld(worldConfig{Seed: o.Seed, Window: rcWindow, Impairment: network}, func(w *world) error {
		var nics [2][]*softnic.NIC
		for range ecmpFlows {
			f, err := w.addPair(cfg, flowConfig{Bytes: o.bytes(ecmpBytes) / ecmpFlows})
			if err != nil {
				return err
			}
			nics[0], nics[1] = append(nics[0], f.from.host.nic), append(nics[1], f.to.host.nic)
		}
		uplinks := slices.Repeat([]softnic.Path{{Rate: hostRate, Queue: ecmpQueue}}, ecmpFlows)
		if err := errors.Join(w.link.SharePaths(nics[0], nics[1], uplinks...), w.link.SharePaths(nics[1], nics[0], uplinks...)); err != nil {
			return err
		}
		if err := w.run(); err != nil {
			return err
		}
		r.measure(w, hostRate*ecmpFlows)
		for _, f := range w.flows {
			took := float64(f.last-f.first) / 1e9
			r.FlowRatios = append(r.FlowRatios, float64(f.bytes)/took/capacity(hostRate))
		}
		r.GoodputRatio = slices.Min(r.FlowRatios)
		return nil
	})
}
