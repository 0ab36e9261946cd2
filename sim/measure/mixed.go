package measure

import (
	"errors"
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
		{"credits", "the defaults, which are receiver credits", &reliable.Config{}, []Aim{{Figure: "goodput_ratio", AtLeast: 0.9}}},
		{"fixed", "fixed windows", hostReliable(), nil},
		{"adaptive", "the defaults but no credits", &reliable.Config{NoCredits: true}, nil},
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

// runMixed measures the fraction of its fair share that each sender gets, at most 1: the last senders have the link to themselves.

func runMixed(o Options, r *Result, cfg *reliable.Config) error {
	far := softnic.Impairment{Delay: mixedDelay, Rate: hostRate}
	everyOther := func(f *fan, i int) error {
		if i%2 == 0 {
			return nil
		}
		from := f.senders[i].nic
		return errors.Join(f.link.Impair(from, f.to.nic, far), f.link.Impair(f.to.nic, from, far))
	}
	return inFan(o, cfg, mixedSenders, mixedBytes, everyOther, func(f *fan) error {
		if err := f.measure(r); err != nil {
			return err
		}
		for _, w := range f.flows {
			took := float64(w.last-w.first) / 1e9
			r.FlowRatios = append(r.FlowRatios, float64(w.bytes)/took/capacity(hostRate)*mixedSenders)
		}
		r.GoodputRatio = min(slices.Min(r.FlowRatios), 1)
		return nil
	})
}
