package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"ibverbx/sim/measure"
)

// errAims means that a measured scenario misses an aim.
var errAims = errors.New("not every aim is reached")

// runMeasured runs one measured scenario and prints its result, or the medians of several seeds.
func runMeasured(ctx context.Context, cmd *cobra.Command, s streams, f *simFlags, scenario *measure.Scenario, m *simGauges) error {
	if f.trace != "" {
		return wrong(cmd, "--trace is not for scenario %s, which is measured", scenario.Name)
	}
	m.of.Store(f.seeds)
	result, err := measureSeeds(ctx, f, scenario, m)
	if result == nil {
		return err
	}
	var printed error
	if f.json {
		printed = printJSON(s.out, result)
	} else {
		printed = printMeasured(s, result)
	}
	if err := cmp.Or(printed, err); err != nil {
		return err
	}
	return missedAims(result.Missed())
}

// measureSeeds runs the selected seeds until ctx is done. The result is nil if no seed was completed.
func measureSeeds(ctx context.Context, f *simFlags, scenario *measure.Scenario, m *simGauges) (*measure.Result, error) {
	r, err := scenario.RunSeeds(ctx, measure.Options{Seed: f.seed, Done: m.done}, f.seeds)
	if errors.Is(err, context.Canceled) {
		err = fmt.Errorf("%w: %w", stopped(ctx, errInterrupted), err)
	}
	return r, err
}

func missedAims(missed []string) error {
	if len(missed) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s", errAims, strings.Join(missed, "; "))
}

func printMeasured(s streams, r *measure.Result) error {
	p := printer{w: s.out}
	p.printf("scenario %s: %s in %.1f us of virtual time\n", r.Scenario, formatBytes(int64(r.Bytes)), r.VirtualUS)
	if r.Seeds > 1 {
		p.printf("medians of %d seeds from %d; counters are of the first\n", r.Seeds, r.Seed)
	}
	p.printf("goodput %.1f Gb/s, %.2f%% of a lossless link after headers\n", r.GoodputGbps, r.GoodputRatio*100)
	p.printf("latency of a message: p50 %.1f us, p99 %.1f us, p99.9 %.1f us\n", r.Latency.P50, r.Latency.P99, r.Latency.P999)
	if r.CostUS != nil {
		p.printf("the fault costs %.1f us\n", *r.CostUS)
	}
	if len(r.FlowRatios) > 0 {
		p.printf("of the worst flow; all: %.3f\n", r.FlowRatios)
	}
	if r.QueueBytes > 0 {
		p.printf("longest queue where flows meet: %s\n", formatBytes(int64(r.QueueBytes)))
	}
	c := &r.Counters
	p.printf("%d packets, %d lost, %.2f%% of what was sent was sent again\n", c.Packets, c.PacketsLost, r.RetransmitRatio*100)
	if c.Chunks > 0 {
		p.printf("%d chunks lost on one path, %d across paths, %d by silence; %d duplicates, %d paths down\n",
			c.SamePathLoss, c.ReorderLoss, c.TimeoutLoss, c.Duplicates, c.PathsDown)
	} else {
		p.printf("went back %d times, %d timeouts\n", c.GoBacks, c.Timeouts)
	}
	for i := range r.Aims {
		verdict := "MISSED"
		if r.Aims[i].Reached {
			verdict = "reached"
		}
		p.printf("aim: %s: %s with %.4g, worst seed %.4g\n", r.Aims[i].String(), verdict, r.Aims[i].Got, r.Aims[i].Worst)
	}
	return p.err
}

// runAllMeasured runs every measured scenario until ctx is done and prints a table. It fails if an aim is missed.
func runAllMeasured(ctx context.Context, s streams, f *simFlags, m *simGauges) error {
	var results []*measure.Result
	var missed []string
	p := printer{w: s.out}
	if !f.json {
		p.printf("%-32s %8s %8s %9s %9s %9s %9s  %s\n", "scenario", "goodput", "Gb/s", "p50 us", "p99 us", "p99.9 us", "cost us", "aims")
	}
	scenarios := measure.Scenarios()
	m.of.Store(f.seeds * uint64(len(scenarios)))
	var err error
	for i := 0; i < len(scenarios) && err == nil; i++ {
		var r *measure.Result
		if r, err = measureSeeds(ctx, f, &scenarios[i], m); r == nil {
			break
		}
		results = append(results, r)
		missed = append(missed, r.Missed()...)
		if !f.json {
			p.println(measuredRow(r))
		}
	}
	if f.json && len(results) > 0 {
		p.err = printJSON(s.out, results)
	}
	if err := cmp.Or(p.err, err); err != nil {
		return err
	}
	return missedAims(missed)
}

// measuredRow formats a result as a line of the table.
func measuredRow(r *measure.Result) string {
	cost := "-"
	if r.CostUS != nil {
		cost = fmt.Sprintf("%.1f", *r.CostUS)
	}
	var aims []string
	for i := range r.Aims {
		text := fmt.Sprintf("%s: %.4g", r.Aims[i].String(), r.Aims[i].Got)
		if r.Seeds > 1 {
			text += fmt.Sprintf(", worst %.4g", r.Aims[i].Worst)
		}
		if !r.Aims[i].Reached {
			text += " MISSED"
		}
		aims = append(aims, text)
	}
	return strings.TrimRight(fmt.Sprintf("%-32s %8.4f %8.1f %9.1f %9.1f %9.1f %9s  %s", r.Scenario, r.GoodputRatio, r.GoodputGbps,
		r.Latency.P50, r.Latency.P99, r.Latency.P999, cost, strings.Join(aims, "; ")), " ")
}
