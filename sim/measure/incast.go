package measure

import (
	"errors"
	"time"

	"ibverbx/reliable"
	"ibverbx/softnic"
)

// The network of the incast scenarios: 16 hosts at 100 Gb/s, a round trip of 20 us, and a
// switch whose port to the receiver has a queue that holds all that fixed windows can bring:
// nothing is lost.
const (
	incastRate    = 12.5e9
	incastDelay   = 10 * time.Microsecond
	incastMTU     = 4096
	incastSenders = 15
	incastBytes   = 320 << 20
	incastQueue   = 64 << 20
	// The victim posts a small message in regular intervals.
	victimBytes = 4 << 10
	victimEvery = 25 * time.Microsecond
)

// incastReliable is how package reliable is set up there: the defaults, with a window of three
// times what the link holds in a round trip, and probes for a network whose round trips are
// known to be short. Credits are granted at 95 % of the link.
func incastReliable() *reliable.Config {
	return &reliable.Config{WindowBytes: 768 << 10, MinProbe: 50_000}
}

func withCredits() *reliable.Config {
	cfg := incastReliable()
	cfg.Credits, cfg.CreditRate = true, 0.95*incastRate
	return cfg
}

// withTarget aims at three times the round trip of the idle network.
func withTarget() *reliable.Config {
	cfg := incastReliable()
	cfg.TargetDelay = int64(6 * incastDelay)
	return cfg
}

// victimP999 is a third of the victim's p99.9 without credits, in microseconds: the aim with
// them. TestVictim compares the two.
const victimP999 = 320

func incastScenarios() []Scenario {
	return []Scenario{{
		Name:  "reliable-incast-15to1-fixed",
		About: "15 hosts send 320 MiB to one at 100 Gb/s with fixed windows; the latency is that of 4 KiB messages of another QP to the same host.",
		Aims:  []Aim{{Figure: "goodput_ratio", AtLeast: 0.9}},
		run:   func(o Options, r *Result) error { return runIncast(o, r, incastReliable()) },
	}, {
		Name:  "reliable-incast-15to1-credits",
		About: "15 hosts send 320 MiB to one at 100 Gb/s with receiver credits; the latency is that of 4 KiB messages of another QP to the same host.",
		Aims:  []Aim{{Figure: "goodput_ratio", AtLeast: 0.9}, {Figure: "latency_us.p999", Below: victimP999}},
		run:   func(o Options, r *Result) error { return runIncast(o, r, withCredits()) },
	}, {
		Name:  "reliable-incast-15to1-swift",
		About: "15 hosts send 320 MiB to one at 100 Gb/s with windows that aim at a round trip of 60 us; the latency is that of 4 KiB messages of another QP to the same host.",
		Aims:  []Aim{{Figure: "goodput_ratio", AtLeast: 0.9}},
		run:   func(o Options, r *Result) error { return runIncast(o, r, withTarget()) },
	}}
}

// runIncast measures the goodput of all flows together, and the latency of the victim.
func runIncast(o Options, r *Result, cfg *reliable.Config) (err error) {
	w, err := NewWorld(WorldConfig{
		Seed: o.Seed, Queue: 1 << 16,
		Impairment: softnic.Impairment{Delay: incastDelay, Rate: incastRate},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	receiver := *cfg
	receiver.RecvDepth = 16 * 256 // so that what holds the senders back is not its buffers
	to, err := w.AddHost(&receiver)
	if err != nil {
		return err
	}
	if err := w.Link.Bottleneck(to.NIC, incastRate, incastQueue); err != nil {
		return err
	}
	flows, victim, err := incastFlows(w, to, cfg, o.bytes(incastBytes)/incastSenders)
	if err != nil {
		return err
	}
	if err := w.Run(); err != nil {
		return err
	}
	r.Measure(w, incastRate, incastMTU, append(flows, victim)...)
	r.Latency = victim.Latency().Quantiles()
	r.QueueBytes = float64(w.Link.LongestQueue(to.NIC))
	return nil
}

// incastFlows adds the senders, with a flow each, and a victim on the last of them.
func incastFlows(w *World, to *Host, cfg *reliable.Config, bytes int) (flows []*Flow, victim *Flow, err error) {
	var from *Host
	for range incastSenders {
		if from, err = w.AddHost(cfg); err != nil {
			return nil, nil, err
		}
		f, err := w.AddFlow(FlowConfig{From: from, To: to, Bytes: bytes})
		if err != nil {
			return nil, nil, err
		}
		flows = append(flows, f)
	}
	victim, err = w.AddFlow(FlowConfig{From: from, To: to, MessageBytes: victimBytes, Every: victimEvery, Depth: 512})
	return flows, victim, err
}
