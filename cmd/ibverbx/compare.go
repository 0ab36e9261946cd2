package main

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"ibverbx/internal/compare"
	"ibverbx/internal/perf/measure"
	"ibverbx/internal/perf/report"
)

const compareLong = `Compare results of ibverbx perf --json. The first side is the base; every other side is compared with it.

A side is a file, or several files separated by commas. A file holds one report or several: append them
with >>. Each report is a sample. If a side has a single report, the intervals of its timeline are the
samples; measure with -D 10 or longer to get enough of them.

Values are medians. Latency percentiles cover all messages of a side: the histograms of its reports are
merged. +- is the 95 % confidence interval; it needs 6 samples. Each change is followed by p, the
probability that chance alone causes it (Mann-Whitney U test), and by the numbers of samples. ~ means
that the difference is not significant: p is 0.05 or more. Each side needs at least 4 samples to show a
significant one.`

const (
	compareHead = " %-10s %-20s %-20s %s\n"
	compareRow  = " %-10d %-20s %-20s %s\n"
	// compareName is the maximum width of a side's name in a table head.
	compareName = 20
)

// newCompare builds the compare command.
func newCompare(s streams) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "compare BASE.json[,BASE2.json...] OTHER.json...",
		Short: "Test whether perf --json results differ significantly",
		Long:  compareLong,
		Example: `  for i in 1 2 3 4 5 6; do ibverbx perf -s 64K --json >> a.json; done
  for i in 1 2 3 4 5 6; do ibverbx perf -s 64K --lanes 2 --json >> b.json; done
  ibverbx compare a.json b.json
  ibverbx compare monday.json,tuesday.json wednesday.json`,
		Args: wantArgs(2, math.MaxInt, "two sides or more, with commas between the files of one side"),
		RunE: func(_ *cobra.Command, args []string) error { return runCompare(s, args, asJSON) },
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

// runCompare prints a table for each side but the first, or one object.
func runCompare(s streams, names []string, asJSON bool) error {
	sets := make([]*compare.Set, len(names))
	for i, name := range names {
		sets[i] = new(compare.Set)
		for file := range strings.SplitSeq(name, ",") {
			if err := readReports(sets[i], file); err != nil {
				return err
			}
		}
	}
	if asJSON {
		return printJSON(s.out, newCompareReport(names, sets))
	}
	p := &printer{w: s.out}
	for i, name := range names {
		p.printf("%s: %s\n", name, setText(sets[i]))
	}
	for i := range sets[1:] {
		printDifferences(p, [2]string{names[0], names[i+1]}, compare.Sets(sets[0], sets[i+1]))
	}
	return p.err
}

// readReports adds the reports of a file to a side.
func readReports(to *compare.Set, name string) error {
	if name == dash {
		return refuseDash(name)
	}
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return explain(err, "%s: no such file; make one with: ibverbx perf --json > %s", name, name)
	}
	if err != nil {
		return err
	}
	if err := errors.Join(to.Read(f), f.Close()); err != nil {
		report, _, _ := strings.Cut(err.Error(), ":")
		return explain(err, "%s: %s is not a result of ibverbx perf --json", name, report)
	}
	return nil
}

// setText describes the number of reports of a side, and when and where the first one was measured.
func setText(s *compare.Set) string {
	text := report.Plural(s.Reports, "report")
	if s.Time.IsZero() {
		return text
	}
	return fmt.Sprintf("%s, %s on %s", text, s.Time.Format(time.DateTime), s.Host)
}

// printDifferences prints a table for each metric.
func printDifferences(p *printer, names [2]string, list []compare.Difference) {
	if len(list) == 0 {
		p.printf("\n%s and %s have no size of the same operation in common.\n", names[0], names[1])
	}
	var last compare.Key
	few := false
	for i := range list {
		d := &list[i]
		size := d.Size
		d.Size = 0
		if d.Key != last {
			last = d.Key
			p.printf("\n%s\n", metricText(&d.Key))
			p.printf(compareHead, "#bytes", headName(names[0]), headName(names[1]), "change")
		}
		p.printf(compareRow, size, valueText(&d.Old, d.Metric), valueText(&d.New, d.Metric), changeText(d))
		few = few || !d.Enough
	}
	if few {
		p.println("\nWith fewer than 4 samples on a side no difference can be told from chance:\nappend more reports (>>), or measure longer (-D 10).")
	}
}

// headName shortens the name of a side to its first file, for a table head.
func headName(name string) string {
	first, rest, several := strings.Cut(name, ",")
	name = filepath.Base(first)
	if several {
		name += fmt.Sprint(" +", strings.Count(rest, ",")+1)
	}
	if len(name) > compareName {
		name = name[:compareName-2] + ".."
	}
	return name
}

// metricText is the title of a table.
func metricText(k *compare.Key) string {
	text := map[string]string{
		compare.Rate:    "BW average [MiB/sec], more is better",
		compare.Typical: "t_typical [usec], less is better",
		compare.P99:     "99% percentile [usec], less is better",
		compare.P999:    "99.9% percentile [usec], less is better",
	}[k.Metric]
	return report.Title(measure.Report{Op: measure.Op(k.Op), Mode: measure.Mode(k.Mode)}) + ": " + text
}

// valueText formats a value and its uncertainty.
func valueText(v *compare.Value, metric string) string {
	x := v.Center
	if metric == compare.Rate {
		x /= mebibyte
	}
	if v.Spread == nil {
		return fmt.Sprintf("%.2f", x)
	}
	return fmt.Sprintf("%.2f +-%.0f%%", x, 100**v.Spread)
}

// changeText formats the change, or ~ if it is not significant.
func changeText(d *compare.Difference) string {
	change := "~"
	if d.Significant {
		change = fmt.Sprintf("%+.2f%%", 100*d.Change)
	}
	return fmt.Sprintf("%s (p=%.3f n=%d+%d)", change, d.P, d.Old.N, d.New.N)
}

// compareReport is the object that compare --json prints.
type compareReport struct {
	// Sides are the arguments; the first one is the base.
	Sides []compareSide `json:"sides"`
	// Comparisons hold each other side against the base.
	Comparisons []comparison `json:"comparisons"`
}

type compareSide struct {
	Name string `json:"name"`
	*compare.Set
}

type comparison struct {
	Base        string               `json:"base"`
	Other       string               `json:"other"`
	Differences []compare.Difference `json:"differences"`
}

// newCompareReport compares the sides, whose first one is the base.
func newCompareReport(names []string, sets []*compare.Set) compareReport {
	var r compareReport
	for i, set := range sets {
		r.Sides = append(r.Sides, compareSide{names[i], set})
		if i > 0 {
			list := append([]compare.Difference{}, compare.Sets(sets[0], set)...) // [] rather than null
			r.Comparisons = append(r.Comparisons, comparison{names[0], names[i], list})
		}
	}
	return r
}
