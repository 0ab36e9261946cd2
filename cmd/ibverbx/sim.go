package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"ibverbx/sim"
	"ibverbx/sim/measure"
)

const simLong = `Run VirtualQPs in a simulated network and check every guarantee of the engine. A seed selects hosts, NICs,
rails, traffic and faults, and time is virtual: the same seed repeats the same run, event by event. Engine
and NICs are the real code.

--seeds M runs M seeds on all processors, starting at --seed. If a guarantee is violated, sim prints the
seed and the events, a minimal scenario that still fails, and the command to repeat it, and exits with
status 1. --help-all describes the checks and the scenario files.`

const simMore = `Checks: data arrives intact and on time; each signaled request completes once, in order; a notification
implies that all earlier data is in memory; buffers are untouched after completion; the first error wins;
every request terminates; work resumes after faults; queues stay within their limits; nothing leaks.

A scenario is a text file with one setting or fault per line; the seed selects the rest. --list prints the
built-in ones:

  about A lane dies while a large message is in flight.
  rails 2                                       # a value, or a range: 1..3
  connection 0 lanes 4 scheme tally             # one connection; all: lanes 4
  end 0a messages 1                             # one end, a or b
  rail 1 loss 2% delay 5us..20us rate 1GB/s     # one rail; all: loss 2%
  ops write imm                                 # of write imm read send atomic
  sizes 64KiB..256KiB
  fault lane-error end 0a lane 1 at 20us
  fault cut rail 0 from 0 to 1 at 1ms for 20ms
  faults 0..4                                   # random faults
  expect failure                                # or success, or contract
  sweep k 0..63                                 # once for each value of $k

docs/reliability.md lists all settings and faults.

Scenarios that --list marks as measured are programs: flows over package reliable or RC, on virtual time,
with every byte compared. They print goodput_ratio (payload divided by the capacity of a lossless link
after headers) and latency_us, with --seeds the medians. The exit status is 1 if a target is missed.
docs/reliable.md has the table.`

const simExample = `  ibverbx sim                             one seed of the scenario mixed
  ibverbx sim --seeds 2000
  ibverbx sim --scenario loss --seeds 100 a built-in scenario
  ibverbx sim --scenario mine.txt --seed 7 --trace trace.jsonl
  ibverbx sim --seeds 500 --json | jq .faults
  ibverbx sim --scenario reliable-400g-loss-1 --json | jq .goodput_ratio
  ibverbx sim --measured                  all measured scenarios, as a table`

// simFlags are the flags of sim.
type simFlags struct {
	seed     uint64
	seeds    uint64
	scenario string
	trace    string
	json     bool
	list     bool
	measured bool
	metrics  metricsFlags
}

// newSim builds the sim command.
func newSim(s streams) *cobra.Command {
	var f simFlags
	cmd := &cobra.Command{
		Use:     "sim",
		Short:   "Check the engine in a simulated network",
		Long:    simLong,
		Example: simExample,
		Args:    noArgs,

		Annotations: map[string]string{helpMore: simMore},
		RunE: func(cmd *cobra.Command, _ []string) error {
			var m simGauges
			return f.metrics.during(cmd.Context(), s, func() error { return runSim(cmd.Context(), cmd, s, &f, &m) }, m.collectors()...)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.scenario, "scenario", "mixed", "`name` of a built-in scenario, or a file")
	flags.Uint64Var(&f.seed, "seed", 1, "first `seed`")
	flags.Uint64Var(&f.seeds, "seeds", 1, "`number` of seeds")
	flags.BoolVar(&f.list, "list", false, "list the built-in scenarios")
	flags.BoolVar(&f.measured, "measured", false, "run all measured scenarios")
	flags.StringVar(&f.trace, "trace", "", "write all events to `file` as JSON lines (one seed only)")
	flags.BoolVar(&f.json, "json", false, "print one JSON object")
	f.metrics.define(flags)
	addHelpAll(cmd, []string{"scenario", "seed", "seeds", "list", "measured", "trace", "json", "metrics"})
	return cmd
}

func runSim(ctx context.Context, cmd *cobra.Command, s streams, f *simFlags, m *simGauges) (err error) {
	if f.list {
		return listScenarios(s)
	}
	if f.seeds == 0 {
		return wrong(cmd, "--seeds 0: use at least 1")
	}
	if f.measured && (f.trace != "" || cmd.Flags().Changed("scenario")) {
		return wrong(cmd, "--measured runs all measured scenarios: drop --scenario and --trace")
	}
	if f.measured {
		return runAllMeasured(ctx, s, f, m)
	}
	if scenario, ok := measure.Builtin(f.scenario); ok {
		return runMeasured(ctx, cmd, s, f, scenario, m)
	}
	if f.trace != "" && f.seeds != 1 {
		return wrong(cmd, "--trace is for one seed, not for --seeds %d", f.seeds)
	}
	scenario, err := findScenario(f.scenario)
	if err != nil {
		return wrong(cmd, "--scenario: %w", err)
	}
	line := newProgressLine(s.err)
	start := time.Now()
	runner := sim.Runner{Scenario: scenario, First: f.seed, Seeds: f.seeds, Progress: func(sum sim.Summary) {
		m.take(&sum)
		line.write(simProgress(sum, time.Since(start)))
	}}
	if f.trace != "" {
		file, e := os.Create(f.trace)
		if e != nil {
			return e
		}
		defer func() { err = errors.Join(err, file.Close()) }()
		runner.Workers, runner.Trace = 1, file
	}
	sum, err := runner.Run(ctx)
	line.clear()
	if err != nil {
		return err
	}
	return reportSim(ctx, s, f, sum, time.Since(start))
}

// findScenario returns a scenario by its name, or from a file.
func findScenario(name string) (*sim.Scenario, error) {
	if !strings.ContainsAny(name, `/\.`) {
		scenario, err := sim.Builtin(name)
		if err != nil {
			err = fmt.Errorf("%w, or one of the measured ones of --list", err)
		}
		return scenario, err
	}
	text, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w, nor a scenario of --list", err)
	}
	if err != nil {
		return nil, err
	}
	return sim.Parse(strings.TrimSuffix(filepath.Base(name), ".txt"), string(text))
}

// scenarioLine is a line of the list: a name of up to 29 letters and a description.
const scenarioLine = "%-29s %s\n"

func listScenarios(s streams) error {
	p := printer{w: s.out}
	for _, name := range sim.Names() {
		scenario, err := sim.Builtin(name)
		if err != nil {
			return err
		}
		p.printf(scenarioLine, name, scenario.About)
	}
	for _, m := range measure.Scenarios() {
		p.printf(scenarioLine, m.Name, "Measured: "+m.About)
	}
	return p.err
}
