package measure

import (
	"math/rand/v2"
	"time"

	"ibverbx/reliable"
	"ibverbx/reliable/core"
	"ibverbx/softnic"
)

// The hosts of the incast and ECMP scenarios have 100 Gb/s and a round trip of 20 us.
const (
	hostRate  = 12.5e9
	hostDelay = 10 * time.Microsecond
)

// In the incast scenarios 15 hosts send to one, through a switch. The queue of the switch holds
// everything that fixed windows allow, so nothing is lost.
const (
	incastSenders = 15
	incastBytes   = 320 << 20
	incastQueue   = 64 << 20
)

// The victim of incast posts a small message at regular intervals.
const (
	victimBytes = 4 << 10
	victimEvery = 25 * time.Microsecond
	// victimP999 is the aim for its p99.9 with credits or Swift, in microseconds: a third of that with fixed
	// windows. TestVictim compares the two.
	victimP999 = 320
)

// hostReliable configures package reliable for these hosts: the defaults, with a window of three times
// the bytes that the link holds in a round trip, and probes for short round trips.
func hostReliable() *reliable.Config {
	return &reliable.Config{WindowBytes: 768 << 10, MinProbe: 50_000}
}

// withCredits grants credits at 95 % of the rate of the link.
func withCredits() *reliable.Config {
	cfg := hostReliable()
	cfg.Credits, cfg.CreditRate = true, 0.95*hostRate
	return cfg
}

// withTarget aims at three times the round trip of the idle network.
func withTarget() *reliable.Config {
	cfg := hostReliable()
	cfg.TargetDelay = int64(6 * hostDelay)
	return cfg
}

// unpaced is Swift whose paths never pause.
type unpaced struct{ *core.Swift }

// Gap implements core.Congestion.
func (unpaced) Gap(int) int64 { return 0 }

// withoutPacing is withTarget without pacing.
func withoutPacing() *reliable.Config {
	cfg := withTarget()
	cfg.Paths, cfg.ChunkBytes = 16, 32<<10
	cfg.Congestion = func() core.Congestion {
		return unpaced{core.NewSwift(cfg.TargetDelay, cfg.Paths, cfg.ChunkBytes, cfg.WindowBytes)}
	}
	return cfg
}

func incastScenarios() []Scenario {
	return []Scenario{{
		Name:  "reliable-incast-15to1-fixed",
		About: "15 hosts send 320 MiB to one at 100 Gb/s with fixed windows; the latency is that of 4 KiB messages of another QP to the same host.",
		Aims:  []Aim{{Figure: "goodput_ratio", AtLeast: 0.9}},
		run:   func(o Options, r *Result) error { return runIncast(o, r, hostReliable()) },
	}, {
		Name:  "reliable-incast-15to1-credits",
		About: "15 hosts send 320 MiB to one at 100 Gb/s with receiver credits; the latency is that of 4 KiB messages of another QP to the same host.",
		Aims:  []Aim{{Figure: "goodput_ratio", AtLeast: 0.9}, {Figure: "latency_us.p999", Below: victimP999}},
		run:   func(o Options, r *Result) error { return runIncast(o, r, withCredits()) },
	}, {
		Name:  "reliable-incast-15to1-swift",
		About: "15 hosts send 320 MiB to one at 100 Gb/s with paths that aim at a round trip of 60 us (Swift); the latency is that of 4 KiB messages of another QP to the same host.",
		Aims:  []Aim{{Figure: "goodput_ratio", AtLeast: 0.9}, {Figure: "latency_us.p999", Below: victimP999}},
		run:   func(o Options, r *Result) error { return runIncast(o, r, withTarget()) },
	}, {
		Name:  "reliable-incast-15to1-unpaced",
		About: "The same as reliable-incast-15to1-swift without pacing: a QP may always have one chunk in flight.",
		run:   func(o Options, r *Result) error { return runIncast(o, r, withoutPacing()) },
	}}
}

// addReceiver adds the host to which all others send. The queue in front of it holds incastQueue bytes.
func (w *world) addReceiver(cfg *reliable.Config) (*host, error) {
	own := *cfg
	own.RecvDepth = 16 * 256 // The buffers of the receiver must not hold back the senders.
	to, err := w.addHost(&own)
	if err != nil {
		return nil, err
	}
	return to, w.link.Bottleneck(to.nic, hostRate, incastQueue)
}

// start is when a sender of the incast and mixed scenarios begins: within the first round trip of the
// idle network, by the seed.
func start(rng *rand.Rand) time.Duration { return time.Duration(rng.Int64N(int64(2 * hostDelay))) }

// runIncast measures the goodput of all flows together, and the latency of the victim.
func runIncast(o Options, r *Result, cfg *reliable.Config) error {
	network := softnic.Impairment{Delay: hostDelay, Rate: hostRate}
	return inWorld(worldConfig{Seed: o.Seed, Queue: 1 << 16, Impairment: network}, func(w *world) error {
		to, err := w.addReceiver(cfg)
		if err != nil {
			return err
		}
		rng := rand.New(rand.NewPCG(o.Seed, 2))
		var from *host
		for range incastSenders {
			if from, err = w.addHost(cfg); err != nil {
				return err
			}
			if _, err := w.addFlow(flowConfig{From: from, To: to, Bytes: o.bytes(incastBytes) / incastSenders, Start: start(rng)}); err != nil {
				return err
			}
		}
		victim, err := w.addFlow(flowConfig{From: from, To: to, MessageBytes: victimBytes, Every: victimEvery, Depth: 512})
		if err != nil {
			return err
		}
		if err := w.run(); err != nil {
			return err
		}
		r.measure(w, hostRate)
		r.Latency = victim.latency.quantiles()
		r.QueueBytes = float64(w.link.LongestQueue(to.nic))
		return nil
	})
}
