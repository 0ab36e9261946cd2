package measure

import (
	"errors"
	"slices"
	"time"

	"ibverbx/reliable"
	"ibverbx/softnic"
)

// The network of the ECMP scenarios: eight hosts on one switch send to eight on another, over
// eight uplinks of the rate of a host, 100 Gb/s. The switch picks the uplink of a QP by a hash.
const (
	ecmpRate  = 12.5e9
	ecmpDelay = 10 * time.Microsecond
	ecmpMTU   = 4096
	ecmpFlows = 8
	ecmpBytes = 256 << 20
	ecmpQueue = 16 << 20 // of an uplink
)

// ecmpReliable is how package reliable is set up there: the defaults, with a window of three
// times what a link holds in a round trip, and probes for a network whose round trips are known
// to be short.
func ecmpReliable() *reliable.Config {
	return &reliable.Config{WindowBytes: 768 << 10, MinProbe: 50_000}
}

func ecmpScenarios() []Scenario {
	return []Scenario{{
		Name:  "reliable-ecmp-collision",
		About: "8 flows of package reliable, 16 paths each, over 8 uplinks that a hash picks; the goodput is that of the worst flow.",
		Aims:  []Aim{{Figure: "goodput_ratio", AtLeast: 0.9}},
		run:   func(o Options, r *Result) error { return runECMP(o, r, ecmpReliable()) },
	}, {
		Name:  "single-ecmp-collision",
		About: "8 flows of one RC QP each over 8 uplinks that a hash picks; the goodput is that of the worst flow.",
		run:   func(o Options, r *Result) error { return runECMP(o, r, nil) },
	}}
}

func runECMP(o Options, r *Result, cfg *reliable.Config) (err error) {
	w, err := NewWorld(WorldConfig{
		Seed: o.Seed, Window: rcWindow,
		Impairment: softnic.Impairment{Delay: ecmpDelay, Rate: ecmpRate},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	var nics [2][]*softnic.NIC
	var flows []*Flow
	for range ecmpFlows {
		fc := FlowConfig{Bytes: o.bytes(ecmpBytes) / ecmpFlows}
		for k, h := range []**Host{&fc.From, &fc.To} {
			if *h, err = w.AddHost(cfg); err != nil {
				return err
			}
			nics[k] = append(nics[k], (*h).NIC)
		}
		f, err := w.AddFlow(fc)
		if err != nil {
			return err
		}
		flows = append(flows, f)
	}
	uplinks := slices.Repeat([]softnic.Path{{Rate: ecmpRate, Queue: ecmpQueue}}, ecmpFlows)
	if err := errors.Join(w.Link.SharePaths(nics[0], nics[1], uplinks...), w.Link.SharePaths(nics[1], nics[0], uplinks...)); err != nil {
		return err
	}
	if err := w.Run(); err != nil {
		return err
	}
	r.Measure(w, ecmpRate*ecmpFlows, ecmpMTU, flows...)
	for _, f := range flows {
		took := float64(f.Last()-f.First()) / 1e9
		r.FlowRatios = append(r.FlowRatios, float64(f.Bytes())/took/Capacity(ecmpRate, ecmpMTU))
	}
	r.GoodputRatio = slices.Min(r.FlowRatios)
	return nil
}
