package measure

import (
	"slices"
	"time"

	"ibverbx/reliable"
	"ibverbx/softnic"
)

// The network of the MRC scenarios: NICs with 8 ports of 100 Gb/s, each into a plane of its own, and a round trip of
// 20 us. The authors of MRC have published figures for it (docs/reliable.md). A hash takes each path to a port.
const (
	mrcPorts = 8
	mrcRate  = mrcPorts * hostRate
	mrcPaths = 64 // MRC has 128 to 256 entropy values
	mrcQueue = 4 << 20
	mrcBad   = 3 // the port that is lost, slow or lossy
)

// mrcReliable has the largest window: the default of 256 chunks lasts for 84 us at 800 Gb/s.
func mrcReliable() *reliable.Config { return &reliable.Config{Paths: mrcPaths, Window: 1024} }

func mrcScenarios() (all []Scenario) {
	plain := contest{
		Rate: mrcRate, Ports: mrcPorts, Delay: hostDelay, Queue: mrcQueue, Flows: 1, Depth: 512, Config: mrcReliable(),
		From: 2 * time.Millisecond, For: 8 * time.Millisecond,
	}
	add := func(name, about string, c contest, fill func(x *contested, r *Result), aims ...Aim) {
		run := func(o Options, r *Result) error {
			return c.run(o, func(x *contested) error {
				x.fill(r)
				if fill != nil {
					fill(x, r)
				}
				return nil
			})
		}
		all = append(all, Scenario{Name: "reliable-mrc-" + name, About: "8 ports of 100 Gb/s, RTT 20 us, 64 paths: " + about, Aims: aims, run: run})
	}
	goodput := func(bar float64) Aim { return Aim{Figure: "goodput_ratio", AtLeast: bar} }
	small := plain
	small.MessageBytes, small.Depth = 32<<10, 512
	add("32k", "messages of 32 KiB.", small, nil, goodput(0.9))
	for _, l := range []struct {
		percent   string
		loss, bar float64
	}{{"0.1", 0.001, 0.85}, {"1", 0.01, 0.6}} {
		c := plain
		c.Loss = l.loss
		add("loss-"+l.percent, l.percent+"% of all packets lost.", c, nil, goodput(l.bar))
	}
	lost := plain
	lost.Begin, lost.From = 2*time.Millisecond, time.Millisecond
	lost.Meets = badPort(softnic.Path{Cut: true})
	add("port-lost", "one is lost; the round trips until the rate is within 2% of 87.5%, and the goodput after 1 ms.", lost,
		func(x *contested, r *Result) { r.BackTrips = x.back(0.98 * (mrcPorts - 1) / mrcPorts) },
		goodput(0.6), Aim{Figure: "back_trips", Below: 200})
	slow, lossy := lost, lost
	slow.Meets = badPort(softnic.Path{Rate: hostRate / 4, Queue: mrcQueue})
	add("port-slow", "one falls to 25 Gb/s; the goodput after 1 ms.", slow, nil, goodput(0.7))
	lossy.Meets = badPort(softnic.Path{Rate: hostRate, Queue: mrcQueue, Loss: 0.05})
	add("port-lossy", "one loses 5% of its packets; the goodput after 1 ms.", lossy, nil, goodput(0.4))
	return append(all, Scenario{
		Name:  "reliable-mrc-incast",
		About: "7 hosts with 8 ports of 100 Gb/s send to one; the goodput is that of a flow from one of them to another host, over what the incast leaves to it.",
		Aims:  []Aim{goodput(0.9), {Figure: "total_ratio", AtLeast: 0.4}},
		run:   runMRCIncast,
	})
}

// badPort changes one port, in both directions.
func badPort(p softnic.Path) func(x *contested) error {
	return func(x *contested) error {
		return x.bulk[0].bothWays(func(from, to *port) error {
			return x.link.SetPath(from.host.nic, to.host.nic, mrcBad, p)
		})
	}
}

// back returns the number of round trips after the last flow began until five in a row carry a share of the link.
func (c *contested) back(share float64) float64 {
	const row = 5
	least := share * row * capacity(c.Rate) / mtu * c.trip().Seconds()
	for i := row; i < len(c.marks); i++ {
		if float64(c.marks[i].landed[0]-c.marks[i-row].landed[0]) >= least {
			return float64(i - row)
		}
	}
	return float64(len(c.marks))
}

// runMRCIncast measures the victim of an incast that shares the ports of a sender with it.
func runMRCIncast(o Options, r *Result) error {
	const senders = 7
	const begin, span = 2 * time.Millisecond, 6 * time.Millisecond
	wc := worldConfig{Seed: o.Seed, Queue: 1 << 17, Impairment: softnic.Impairment{Delay: hostDelay}}
	return inWorld(wc, func(w *world) error {
		var hosts []*host
		for range senders + 2 {
			h, err := w.addHost(mrcReliable())
			if err != nil {
				return err
			}
			hosts = append(hosts, h)
		}
		to, other := hosts[senders], hosts[senders+1]
		if err := w.link.Bottleneck(to.nic, mrcRate, incastQueue); err != nil {
			return err
		}
		for i, h := range hosts[:senders] {
			ports := slices.Repeat([]softnic.Path{{Rate: hostRate, Queue: mrcQueue}}, mrcPorts)
			if err := w.link.SharePaths([]*softnic.NIC{h.nic}, []*softnic.NIC{to.nic, other.nic}, ports...); err != nil {
				return err
			}
			start := settle + time.Duration(mix(o.Seed, uint64(i))%uint64(2*hostDelay))
			if _, err := w.addFlow(flowConfig{From: h, To: to, Start: start}); err != nil {
				return err
			}
		}
		victim, err := w.addFlow(flowConfig{From: hosts[0], To: other, Start: settle, Depth: 256})
		if err != nil {
			return err
		}
		moved := func() (bytes [2]float64) {
			for _, f := range w.flows[:senders] {
				bytes[0] += float64(f.bytes)
			}
			bytes[1] = float64(victim.bytes)
			return bytes
		}
		var before [2]float64
		w.at(time.Duration(w.now)+begin, func() error { before = moved(); return nil })
		if err := w.runFor(begin + span); err != nil {
			return err
		}
		after, whole := moved(), capacity(mrcRate)*span.Seconds()
		r.measure(w, mrcRate)
		total := min((after[0]-before[0])/whole, 1)
		r.TotalRatio = &total
		r.GoodputRatio = min((after[1]-before[1])/whole/(1-total/senders), 1)
		r.QueueBytes = float64(w.link.LongestQueue(to.nic))
		return nil
	})
}
