package measure

import (
	"errors"
	"time"

	"ibverbx/softnic"
)

// hardScenarios are networks on which package reliable has to hold, or which show where it
// ends.
func hardScenarios() []Scenario {
	reorders := softnic.Impairment{Reorder: 0.01, Delay: fastDelay, Rate: fastRate}
	return []Scenario{{
		Name:  "reliable-400g-rtt-step",
		About: "64 MiB during which the round trip time becomes ten times as long, 200 us: hardly anything is sent again.",
		Aims:  []Aim{{Figure: "retransmit_ratio", Below: 0.02}},
		run:   runStep,
	}, {
		Name:  "reliable-400g-reorder-1",
		About: "64 MiB on paths that reorder, which they must not: 1% of all packets are overtaken by up to four others.",
		run:   func(o Options, r *Result) error { return runFast(o, r, fastReliable(), reorders, 64<<20) },
	}, {
		Name:  "rc-400g-reorder-1",
		About: "The same over one RC QP of the NIC.",
		run:   func(o Options, r *Result) error { return runFast(o, r, nil, reorders, 64<<20) },
	}}
}

// runStep makes round trips ten times as long when a third of the bytes should be over.
func runStep(o Options, r *Result) (err error) {
	bytes := o.bytes(64 << 20)
	w, f, err := pair(WorldConfig{
		Seed: o.Seed, Impairment: softnic.Impairment{Delay: fastDelay, Rate: fastRate},
	}, fastReliable(), FlowConfig{Bytes: bytes})
	defer func() { err = errors.Join(err, w.Close()) }()
	if err != nil {
		return err
	}
	w.At(time.Duration(float64(bytes)/3/fastRate*1e9), func() error {
		for _, ends := range f.bothWays() {
			if err := w.Link.Impair(ends[0].host.NIC, ends[1].host.NIC, softnic.Impairment{Delay: 10 * fastDelay, Rate: fastRate}); err != nil {
				return err
			}
		}
		return nil
	})
	if err := w.Run(); err != nil {
		return err
	}
	r.Measure(w, fastRate, fastMTU, f)
	return nil
}
