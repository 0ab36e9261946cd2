package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"ibverbx/sim"
	"ibverbx/verbs"
)

// simReport is the output of --json.
type simReport struct {
	Scenario    string         `json:"scenario"`
	Seed        uint64         `json:"seed"`
	Seeds       uint64         `json:"seeds"`
	Worlds      int            `json:"worlds"`
	Messages    int            `json:"messages"`
	Faults      map[string]int `json:"faults"`
	FaultWorlds map[string]int `json:"fault_worlds"`
	RailWorlds  map[string]int `json:"rail_worlds"`
	Failures    []simFailure   `json:"failures"`
	Metrics     simMetrics     `json:"metrics"`
	Interrupted bool           `json:"interrupted,omitempty"`
}

// simMetrics holds the measurements of a run, besides its verdict.
type simMetrics struct {
	Bytes          int     `json:"bytes"`
	VirtualSeconds float64 `json:"virtual_seconds"`
	Packets        uint64  `json:"packets"`
	Retransmits    uint64  `json:"retransmits"`
	Timeouts       uint64  `json:"timeouts"`
	RNRNAKs        uint64  `json:"rnr_naks"`
	LaneDeaths     uint64  `json:"lane_deaths"`
	Replayed       uint64  `json:"replayed"`
	FailedQPs      int     `json:"failed_qps"`
	// GoodputGbps is the goodput of the slowest world, if the scenario measures goodput.
	GoodputGbps float64 `json:"goodput_gbps,omitempty"`
	// RatioToSum is GoodputGbps divided by the sum of all rail rates.
	RatioToSum float64 `json:"ratio_to_sum,omitempty"`
	// Seconds is the wall time of the run.
	Seconds float64 `json:"seconds"`
}

// simFailure describes a seed that violated a guarantee.
type simFailure struct {
	Seed uint64 `json:"seed"`
	sim.Failure
	// Scenario is the smallest failing scenario found.
	Scenario string `json:"scenario"`
	Command  string `json:"command"`
}

// shrinkBudget limits the worlds run to shrink a failure.
const shrinkBudget = 400

// reportSim prints the results of all seeds. It fails if a guarantee was violated or the run was interrupted.
func reportSim(ctx context.Context, s streams, f *simFlags, sum sim.Summary, took time.Duration) error {
	failures, err := shrinkAll(sum.Failures, f)
	if err != nil {
		return err
	}
	interrupted := ctx.Err() != nil && sum.Seeds < sum.Of
	if f.json {
		err = printJSON(s.out, simReport{
			Scenario: sum.Scenario, Seed: sum.First, Seeds: sum.Seeds, Worlds: sum.Worlds, Messages: sum.Messages,
			Faults: sum.Faults, FaultWorlds: sum.FaultWorlds, RailWorlds: sum.Rails, Failures: failures, Interrupted: interrupted,
			Metrics: simMetrics{
				Bytes: sum.Bytes, VirtualSeconds: sum.Virtual.Seconds(), Packets: sum.Packets, Retransmits: sum.Resent,
				Timeouts: sum.Timeouts, RNRNAKs: sum.RNRs, LaneDeaths: sum.Deaths, Replayed: sum.Replayed, FailedQPs: sum.FailedQPs,
				GoodputGbps: sum.Goodput * 8e-9, RatioToSum: sum.Share, Seconds: took.Seconds(),
			},
		})
	} else {
		err = printSim(s.out, sum, failures, took)
	}
	switch {
	case err != nil:
		return err
	case len(failures) > 0:
		return fmt.Errorf("%d of %d worlds violated a guarantee, the first with seed %d", sum.Failed, sum.Worlds, failures[0].Seed)
	case interrupted:
		return fmt.Errorf("%w: %d of %d seeds were run", stopped(ctx, errInterrupted), sum.Seeds, sum.Of)
	}
	return nil
}

// shrinkAll prepares failures for the report. Only the first one is shrunk.
func shrinkAll(reports []*sim.Report, f *simFlags) (failures []simFailure, err error) {
	failures = []simFailure{} // encodes as [], not null
	for i, r := range reports {
		plan := r.Plan
		if i == 0 {
			pool := sim.NewPool()
			plan = sim.Shrink(plan, r.Failure, sim.Options{Pool: pool}, shrinkBudget)
			// A broken world may leave memory registered, which stays allocated until the process exits.
			if e := pool.Close(); !errors.Is(e, verbs.ErrBusy) {
				err = errors.Join(err, e)
			}
		}
		failures = append(failures, simFailure{
			Seed: plan.Seed, Failure: *r.Failure, Scenario: plan.String(),
			Command: fmt.Sprintf("ibverbx sim --seed %d --scenario %s", plan.Seed, f.scenario),
		})
	}
	return failures, err
}

func printSim(w io.Writer, sum sim.Summary, failures []simFailure, took time.Duration) error {
	p := printer{w: w}
	p.printf("scenario %s: %d seeds from %d, %d worlds, %d messages, %s in %.1f s (%.0f seeds/s)\n",
		sum.Scenario, sum.Seeds, sum.First, sum.Worlds, sum.Messages, formatBytes(int64(sum.Bytes)), took.Seconds(), float64(sum.Seeds)/took.Seconds())
	p.printf("%.3f s of virtual time, %d packets, %d retransmits, %d timeouts, %d RNR NAKs\n",
		sum.Virtual.Seconds(), sum.Packets, sum.Resent, sum.Timeouts, sum.RNRs)
	p.printf("%d lanes lost, %d requests moved to other lanes, %d VirtualQPs failed\n", sum.Deaths, sum.Replayed, sum.FailedQPs)
	if sum.Share > 0 {
		p.printf("goodput %.1f Gb/s, %.1f%% of what the rails can carry\n", sum.Goodput*8e-9, sum.Share*100)
	}
	p.printf("worlds by rails: %s\n", counts(sum.Rails))
	if len(sum.Faults) > 0 {
		p.printf("faults: %s\n", counts(sum.Faults))
	}
	if len(failures) == 0 {
		p.println("all guarantees held")
		return p.err
	}
	for i := range failures {
		f := &failures[i]
		p.printf("\nseed %d violated a guarantee: %v\n", f.Seed, f.Error())
		p.printf("  again:  %s\n", f.Command)
		if i == 0 {
			p.printf("  smaller: save this as small.txt, then  ibverbx sim --seed %d --scenario small.txt\n\n", f.Seed)
			for line := range strings.Lines(f.Scenario) {
				p.printf("    %s", line)
			}
		}
	}
	return p.err
}

// counts lists name and number pairs, sorted by name.
func counts(of map[string]int) string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(of)) {
		list = append(list, fmt.Sprintf("%s %d", name, of[name]))
	}
	return strings.Join(list, ", ")
}
