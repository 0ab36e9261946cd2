package main

import (
	"fmt"
	"strings"
)

// The verdict of a column on an item, from best to worst.
type verdict int

const (
	passes      verdict = iota
	substituted         // passes, with a substitute for the right status
	inPart              // passes with skipped subtests
	absent              // the device lacks the feature
	departs             // departs from the specification, for a reason given by the provider's test
)

var words = [...]string{passes: "yes", substituted: "yes, status", inPart: "partial", absent: "n/a", departs: "departs"}

func (v verdict) String() string { return words[v] }

// Texts of the suite.
const (
	departsPrefix = "departs from the specification: "
	takenFor      = " is accepted as "
)

// note is a reason for skipping a test.
type note struct {
	name   string // of the item, or of a part of it
	reason string
}

// outcome is the verdict on an item, with its notes.
type outcome struct {
	verdict                  verdict
	departures, lacks, swaps []note
}

// judge looks an item up in the log of a run. It returns an error if the item failed or did not run.
func (l *testLog) judge(run, name string) (outcome, error) {
	var o outcome
	full := run + "/" + name
	for _, n := range append([]string{full}, l.below(full)...) {
		short := strings.TrimPrefix(n, run+"/")
		switch v := l.verdicts[n]; v {
		case "SKIP":
			o.skipped(short, l.lines[n])
		case "PASS":
			o.passed(name, l.lines[n])
		case "":
			return o, fmt.Errorf("the log has no verdict on %s", n)
		default:
			return o, fmt.Errorf("the log has the verdict %s on %s", v, n)
		}
	}
	switch whole := l.verdicts[full] == "SKIP"; {
	case whole && len(o.departures) > 0:
		o.verdict = departs
	case whole:
		o.verdict = absent
	case len(o.departures)+len(o.lacks) > 0:
		o.verdict = inPart
	case len(o.swaps) > 0:
		o.verdict = substituted
	}
	return o, nil
}

func (o *outcome) skipped(name string, lines []string) {
	reason := "no reason given"
	if len(lines) > 0 {
		reason = lines[len(lines)-1]
	}
	if why, ok := strings.CutPrefix(reason, departsPrefix); ok {
		o.departures = append(o.departures, note{name, why})
		return
	}
	o.lacks = append(o.lacks, note{name, reason})
}

func (o *outcome) passed(name string, lines []string) {
	for _, line := range lines {
		if strings.Contains(line, takenFor) {
			o.swaps = append(o.swaps, note{name, line})
		}
	}
}

// column is one provider on one kind of device: the runs of the suite there.
type column struct {
	title string
	runs  []string
	log   *testLog
}

// judge returns the worst verdict of the runs, with all notes. A feature counts as present if one run passed
// fully, even if another's device lacks it.
func (c *column) judge(name string) (outcome, error) {
	var (
		worst outcome
		whole bool
		runs  []outcome
	)
	for _, run := range c.runs {
		o, err := c.log.judge(run, name)
		if err != nil {
			return o, err
		}
		whole = whole || len(o.departures)+len(o.lacks) == 0
		runs = append(runs, o)
	}
	for _, o := range runs {
		if whole && len(o.departures) == 0 && len(o.lacks) > 0 {
			continue
		}
		worst.verdict = max(worst.verdict, o.verdict)
		worst.departures = append(worst.departures, o.departures...)
		worst.lacks = append(worst.lacks, o.lacks...)
		worst.swaps = append(worst.swaps, o.swaps...)
	}
	return worst, nil
}
