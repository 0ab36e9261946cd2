package measure

import (
	"fmt"
	"time"

	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// The network of the loss scenarios: 400 Gb/s, a round trip of 20 us, packets of 4096 bytes.
const (
	fastRate  = 50e9
	fastDelay = 10 * time.Microsecond
	fastBytes = 256 << 20 // payload of a transfer
)

// fastReliable configures package reliable for it: the defaults, with a window of 1.5 times the
// bytes that the link holds in a round trip, and probes for a network with short round trips.
func fastReliable() *reliable.Config {
	return &reliable.Config{Paths: 16, ChunkBytes: 32 << 10, Window: 256, WindowBytes: 1536 << 10, MinProbe: 50_000}
}

// The RC QP gets the best settings for this network. The window of packets just keeps the link
// full, because everything behind a lost packet is sent again. The timeout is three round trips:
// with that of Connect, 67 ms, a lost NAK would cost twelve times the whole transfer.
const (
	rcWindow  = 256
	rcTimeout = 4 // 65.5 us
)

// lossScenarios are transfers over a link that loses packets in both directions.
func lossScenarios() (all []Scenario) {
	for _, c := range []struct {
		percent string
		loss    float64
		aim     float64 // of WRITEs
		read    float64 // aim of READs, within 0.05 of what WRITEs reach; 0 if there is no such scenario
	}{{"0", 0, 0.97, 0.97}, {"0.01", 0.0001, 0.95, 0.95}, {"0.1", 0.001, 0.90, 0.94}, {"1", 0.01, 0.75, 0.865}, {"5", 0.05, 0.50, 0}} {
		network := softnic.Impairment{Loss: c.loss, Delay: fastDelay, Rate: fastRate}
		all = append(all, Scenario{
			Name:  "reliable-400g-loss-" + c.percent,
			About: fmt.Sprintf("256 MiB over 16 UC paths of package reliable at 400 Gb/s, RTT 20 us, %s%% of all packets lost.", c.percent),
			Aims:  []Aim{{Figure: "goodput_ratio", AtLeast: c.aim}},
			run:   func(o Options, r *Result) error { return runFast(o, r, fastReliable(), network, fastBytes) },
		}, Scenario{
			Name:  "rc-400g-loss-" + c.percent,
			About: fmt.Sprintf("The same over one RC QP of the NIC, %s%% of all packets lost.", c.percent),
			run:   func(o Options, r *Result) error { return runFast(o, r, nil, network, fastBytes) },
		})
		if c.read > 0 {
			all = append(all, readScenarios(c.percent, network, c.read)...)
		}
	}
	return all
}

// datagramScenarios are transfers over UD paths between NICs with UD alone.
func datagramScenarios() (all []Scenario) {
	for _, c := range []struct {
		name    string
		delay   time.Duration
		percent string
		loss    float64
		aim     float64
	}{
		{"", fastDelay, "0", 0, 0.98},
		{"", fastDelay, "0.1", 0.001, 0.97},
		{"", fastDelay, "1", 0.01, 0.93},
		{"", fastDelay, "5", 0.05, 0.75},
		{"-10us", fastDelay / 2, "0", 0, 0.98},
		{"-10us", fastDelay / 2, "1", 0.01, 0.95},
	} {
		network := softnic.Impairment{Loss: c.loss, Delay: c.delay, Rate: fastRate}
		all = append(all, Scenario{
			Name:  "reliable-ud-400g" + c.name + "-loss-" + c.percent,
			About: fmt.Sprintf("256 MiB over 16 UD paths of package reliable at 400 Gb/s, RTT %v, %s%% of all packets lost.", 2*c.delay, c.percent),
			Aims:  []Aim{{Figure: "goodput_ratio", AtLeast: c.aim}},
			run:   func(o Options, r *Result) error { return runFast(o, r, fastDatagrams(), network, fastBytes) },
		})
	}
	return all
}

// fastDatagrams is fastReliable over UD, whose chunks are datagrams.
func fastDatagrams() *reliable.Config {
	return &reliable.Config{Carrier: verbs.UD, Paths: 16, WindowBytes: 1536 << 10, MinProbe: 50_000}
}

// readScenarios are the same transfers by READs.
func readScenarios(percent string, network softnic.Impairment, aim float64) []Scenario {
	read := func(cfg *reliable.Config) func(o Options, r *Result) error {
		return func(o Options, r *Result) error {
			return runPair(r, worldConfig{Seed: o.Seed, Window: rcWindow, Impairment: network}, cfg,
				flowConfig{Read: true, Bytes: o.bytes(fastBytes), AckTimeout: rcTimeout}, nil)
		}
	}
	return []Scenario{{
		Name:  "reliable-400g-read-loss-" + percent,
		About: fmt.Sprintf("256 MiB of READs over 16 UC paths at 400 Gb/s, RTT 20 us, %s%% of all packets lost.", percent),
		Aims:  []Aim{{Figure: "goodput_ratio", AtLeast: aim}},
		run:   read(fastReliable()),
	}, {
		Name:  "rc-400g-read-loss-" + percent,
		About: fmt.Sprintf("The same READs over one RC QP of the NIC, %s%% of all packets lost.", percent),
		run:   read(nil),
	}}
}

// runFast moves bytes over the fast network, with package reliable if cfg is not nil.
func runFast(o Options, r *Result, cfg *reliable.Config, network softnic.Impairment, bytes int) error {
	return runPair(r, worldConfig{Seed: o.Seed, Window: rcWindow, Impairment: network}, cfg,
		flowConfig{Bytes: o.bytes(bytes), AckTimeout: rcTimeout}, nil)
}

// runPair runs a world of two hosts with a flow from one to the other, and measures it as part of
// the fast network. prepare, if not nil, is called before the run.
func runPair(r *Result, wc worldConfig, cfg *reliable.Config, fc flowConfig, prepare func(*world, *flow) error) error {
	return inWorld(wc, func(w *world) error {
		f, err := w.addPair(cfg, fc)
		if err == nil && prepare != nil {
			err = prepare(w, f)
		}
		if err == nil {
			err = w.run()
		}
		if err == nil {
			r.measure(w, fastRate)
		}
		return err
	})
}

// addPair adds two hosts and a flow from one to the other.
func (w *world) addPair(cfg *reliable.Config, fc flowConfig) (f *flow, err error) {
	for _, h := range []**host{&fc.From, &fc.To} {
		if *h, err = w.addHost(cfg); err != nil {
			return nil, err
		}
	}
	fc.Start = settle
	return w.addFlow(fc)
}
