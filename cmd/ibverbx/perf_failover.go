package main

import (
	"slices"

	"ibverbx/internal/live"
	"ibverbx/internal/perf/measure"
	"ibverbx/internal/perf/report"
)

// sparkColumns limits the columns of a timeline. Longer ones are folded.
const sparkColumns = 50

// failover prints the loss of a rail: the rates over time, before, during and after it, the events,
// and what was replayed.
func (t *perfTable) failover(r *measure.Report) {
	f := r.Failover
	t.timeline(r)
	t.table(report.Phases(r, t.unit))
	t.println(tableRule)
	t.table(report.EventTable(r))
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

// timeline prints the rate of each rail over time as a line of blocks. It joins spans until they fit.
func (t *perfTable) timeline(r *measure.Report) {
	spans := r.Failover.Timeline
	if len(spans) == 0 {
		return
	}
	per, top := (len(spans)+sparkColumns-1)/sparkColumns, 0.0
	rates := make([][]float64, len(r.PerRail))
	for part := range slices.Chunk(spans, per) {
		for rail := range rates {
			sum := 0.0
			for i := range part {
				sum += part[i].PerRail[rail]
			}
			mean := sum / float64(len(part))
			rates[rail], top = append(rates[rail], mean), max(top, mean)
		}
	}
	for rail := range rates {
		name := r.PerRail[rail].Device + " -> " + r.PerRail[rail].Peer
		t.printf(" rail %-2d %-18s|%s|\n", rail, name, live.Blocks(rates[rail], 1, top)[0])
	}
	t.printf(" a column is %.0f ms, a full block %.2f %s\n", 1000*spans[len(spans)-1].To/float64(len(rates[0])), top*t.unit.Scale, t.unit.Name)
	t.println(tableRule)
}
