package measure

import (
	"time"

	"ibverbx/reliable"
	"ibverbx/softnic"
)

// hardScenarios are difficult networks. Some show the limits of package reliable.
func hardScenarios() []Scenario {
	reorders := softnic.Impairment{Reorder: 0.01, Delay: fastDelay, Rate: fastRate}
	return []Scenario{{
		Name:  "reliable-400g-rtt-step",
		About: "64 MiB during which the round trip time becomes ten times as long, 200 us: hardly anything is sent again.",
		Aims:  []Aim{{Figure: "retransmit_ratio", Below: 0.02}},
		run:   func(o Options, r *Result) error { return runStep(o, r, fastReliable()) },
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

// runStep makes round trips ten times as long after about a third of the transfer.
func runStep(o Options, r *Result, cfg *reliable.Config) error {
	bytes := o.bytes(64 << 20)
	wc := worldConfig{Seed: o.Seed, Impairment: softnic.Impairment{Delay: fastDelay, Rate: fastRate}}
	return runPair(r, wc, cfg, flowConfig{Bytes: bytes}, func(w *world, f *flow) error {
		w.at(settle+time.Duration(float64(bytes)/3/fastRate*1e9), func() error {
			return f.bothWays(func(from, to *port) error {
				return w.link.Impair(from.host.nic, to.host.nic, softnic.Impairment{Delay: 10 * fastDelay, Rate: fastRate})
			})
		})
		return nil
	})
}
