package main

import (
	"fmt"
	"slices"
	"strings"

	"ibverbx/internal/perf/measure"
	"ibverbx/internal/perf/report"
)

const (
	phaseRow  = " %-9s %-10.3f %-10.3f %-21.2f %s\n"
	eventHead = " time[s]    end        event"
	eventRow  = " %-10.3f %-10s %s\n"

	// sparkColumns is how many columns a timeline has at most. Longer ones are folded.
	sparkColumns = 50
)

// sparks are blocks by height. A rate of zero is a blank.
var sparks = [...]rune{'▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'}

// failover prints the loss of a rail: the rates over time, before, during and after it, the events,
// and what was replayed.
func (t *perfTable) failover(r *measure.Report) {
	f := r.Failover
	t.timeline(r)
	t.phases(r)
	t.println(eventHead)
	for _, e := range report.Events(f.Events) {
		t.printf(eventRow, e.At, e.End, report.EventText(r, &e))
	}
	t.println(tableRule)
	messages := int64(0)
	for i := range r.Results {
		messages += r.Results[i].Iterations
	}
	t.printf(" lanes out of service: %d; requests that other lanes took over: %d\n", f.LanesDown, f.Replayed)
	switch {
	case messages > 0 && r.Remote != "":
		t.printf(" every byte of %d messages was compared\n", messages)
	case messages > 0:
		t.printf(" every byte of %d messages was compared, the last of them twice\n", messages)
	}
}

// timeline prints the rate of each rail over time as a line of blocks.
func (t *perfTable) timeline(r *measure.Report) {
	spans := fold(r.Failover.Timeline)
	if len(spans) == 0 {
		return
	}
	top := 0.0
	for i := range spans {
		top = max(top, slices.Max(spans[i].PerRail))
	}
	for rail := range r.PerRail {
		var line strings.Builder
		for i := range spans {
			line.WriteRune(spark(spans[i].PerRail[rail], top))
		}
		name := r.PerRail[rail].Device + " -> " + r.PerRail[rail].Peer
		t.printf(" rail %-2d %-18s|%s|\n", rail, name, line.String())
	}
	t.printf(" a column is %.0f ms, a full block %.2f %s\n", 1000*spans[len(spans)-1].To/float64(len(spans)), top*t.scale, t.unit)
	t.println(tableRule)
}

// spark is a block as high as the rate is, where top fills it.
func spark(rate, top float64) rune {
	if rate <= 0 || top <= 0 {
		return ' '
	}
	return sparks[min(int(rate/top*float64(len(sparks))), len(sparks)-1)]
}

// fold joins neighbours until a timeline is short enough to read.
func fold(spans []measure.Span) []measure.Span {
	per := (len(spans) + sparkColumns - 1) / sparkColumns
	if per <= 1 {
		return spans
	}
	var out []measure.Span
	for part := range slices.Chunk(spans, per) {
		sum := measure.Span{From: part[0].From, To: part[len(part)-1].To, PerRail: make([]float64, len(part[0].PerRail))}
		for i := range part {
			for rail, rate := range part[i].PerRail {
				sum.PerRail[rail] += rate
			}
		}
		for rail := range sum.PerRail {
			sum.PerRail[rail] /= float64(len(part))
		}
		out = append(out, sum)
	}
	return out
}

// phases prints the rates before, during and after the outage, and the share of each rail.
func (t *perfTable) phases(r *measure.Report) {
	head := fmt.Sprintf(" %-9s %-10s %-10s %-21s", "phase", "from[s]", "to[s]", "BW average["+t.unit+"]")
	for rail := range r.PerRail {
		head += fmt.Sprintf(" %-10s", fmt.Sprintf("rail %d[%%]", rail))
	}
	t.println(strings.TrimRight(head, " "))
	for i, s := range r.Failover.Phases {
		total := 0.0
		for _, rate := range s.PerRail {
			total += rate
		}
		shares := make([]string, len(s.PerRail))
		for rail, rate := range s.PerRail {
			share := 0.0
			if total > 0 {
				share = 100 * rate / total
			}
			shares[rail] = fmt.Sprintf("%-10.2f", share)
		}
		name := [...]string{"before", "during", "after"}[i]
		t.printf(phaseRow, name, s.From, s.To, s.BytesPerSecond*t.scale, strings.TrimRight(strings.Join(shares, " "), " "))
	}
	t.println(tableRule)
}
