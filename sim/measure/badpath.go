package measure

import (
	"ibverbx/reliable"
	"ibverbx/softnic"
)

// badPathScenarios are transfers over 16 paths, one of which is bad.
func badPathScenarios() (all []Scenario) {
	for _, c := range []struct {
		name, with string
		cfg        *reliable.Config
	}{
		{"fixed", "fixed windows", fastReliable()},
		{"adaptive", "the defaults", &reliable.Config{}},
	} {
		all = append(all, Scenario{
			Name:  "reliable-path-lossy-" + c.name,
			About: "256 MiB at 400 Gb/s, RTT 20 us, over 16 paths, one of which loses 5% of its packets, with " + c.with + ".",
			Aims:  []Aim{{Figure: "goodput_ratio", AtLeast: 0.95}},
			run:   func(o Options, r *Result) error { return runBadPath(o, r, c.cfg, softnic.Path{Loss: 0.05}) },
		}, Scenario{
			Name:  "reliable-path-slow-" + c.name,
			About: "256 MiB at 400 Gb/s, RTT 20 us, over 16 paths, one of which has only 2 Gb/s, with " + c.with + ".",
			Aims:  []Aim{{Figure: "goodput_ratio", AtLeast: 0.95}},
			run: func(o Options, r *Result) error {
				return runBadPath(o, r, c.cfg, softnic.Path{Rate: 0.25e9, Queue: 1 << 30})
			},
		})
	}
	return all
}

// runBadPath moves bytes over paths that take different ways, one of which is bad.
func runBadPath(o Options, r *Result, cfg *reliable.Config, bad softnic.Path) error {
	wc := worldConfig{Seed: o.Seed, Impairment: softnic.Impairment{Delay: fastDelay, Rate: fastRate}}
	return runPair(r, wc, cfg, flowConfig{Bytes: o.bytes(fastBytes)}, func(w *world, f *flow) error {
		if err := f.spread(); err != nil {
			return err
		}
		path, err := f.lonely(int(o.Seed))
		if err != nil {
			return err
		}
		return w.link.SetPath(f.from.host.nic, f.to.host.nic, way(&f.from, &f.to, path), bad)
	})
}
