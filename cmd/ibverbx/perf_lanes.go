package main

import (
	"fmt"
	"slices"

	"ibverbx/internal/perf/measure"
	"ibverbx/internal/perf/report"
)

const (
	railRow = " rail %-2d %6.2f %% %12.2f MiB  %s\n"

	healthIndent = "         "

	// foldLanes is how many lanes have their own line without --verbose: half of them are the
	// first, half the last, among them the lanes for messages and notifications.
	foldLanes = 16
	// evenLanes is by how much of the largest the shares of data lanes may differ and still be called even.
	evenLanes = 0.2
)

// carried prints what each rail carried, its share of the bytes and its health. Lanes follow with --verbose, or if they
// differ.
func (t *perfTable) carried(r *measure.Report) {
	for i := range r.PerRail {
		rail := &r.PerRail[i]
		t.printf(railRow, rail.Rail, 100*rail.Share, float64(rail.Bytes)/mebibyte, report.EndsText(rail, r.Remote != ""))
		if text := report.HealthText(rail.Health); text != "" {
			t.wrap(healthIndent, text)
		}
	}
	deaths := uint64(0)
	for i := range r.PerLane {
		deaths += r.PerLane[i].Deaths
	}
	if deaths > 0 && r.Failover == nil { // otherwise the report of the outage has it
		t.printf(" lanes were lost %d times and rebuilt\n", deaths)
	}
	if t.all || report.Judged(r) && differ(r.PerLane) {
		t.lanes(r.PerLane)
	}
	if t.all {
		t.table(report.Paths(r.PerLane))
	}
}

// differ reports whether some data lanes carried much less than others of their rail. Lines of rails show how rails
// differ.
func differ(lanes []measure.Lane) bool {
	most := make(map[int]float64)
	for i := range lanes {
		if l := &lanes[i]; l.Role == "data" {
			most[l.Rail] = max(most[l.Rail], l.Share)
		}
	}
	return slices.ContainsFunc(lanes, func(l measure.Lane) bool { return l.Role == "data" && l.Share < most[l.Rail]*(1-evenLanes) })
}

// lanes prints what each lane carried.
func (t *perfTable) lanes(lanes []measure.Lane) {
	table := report.Lanes(lanes)
	t.println(t.paint(bold, table.TextHead()))
	hidden := lanes[:0]
	if !t.all && len(lanes) > foldLanes {
		hidden = lanes[foldLanes/2 : len(lanes)-foldLanes/2]
	}
	for i := range lanes {
		if folded := i - foldLanes/2; folded >= 0 && folded < len(hidden) {
			continue
		}
		l := &lanes[i]
		t.println(table.TextRow(i))
		if l.Refusals > 0 {
			t.printf("%s%d posts were refused, or taken in part\n", healthIndent, l.Refusals)
		}
		if text := report.HealthText(l.Health); text != "" {
			t.wrap(healthIndent, text)
		}
	}
	if len(hidden) > 0 {
		t.println(summary(hidden))
	}
}

// summary is one line for all lanes that have no line of their own.
func summary(lanes []measure.Lane) string {
	low, high, sum := lanes[0].Share, 0.0, 0.0
	for i := range lanes {
		share := lanes[i].Share
		low, high, sum = min(low, share), max(high, share), sum+share
	}
	return fmt.Sprintf(" lanes %d to %d carried %.2f %%, %.2f to %.2f %% each; see all with --verbose",
		lanes[0].Lane, lanes[len(lanes)-1].Lane, 100*sum, 100*low, 100*high)
}
