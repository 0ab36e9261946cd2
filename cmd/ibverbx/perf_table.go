package main

import (
	"fmt"
	"slices"
	"strings"

	"ibverbx/internal/htmldoc"
	"ibverbx/internal/monitor"
	"ibverbx/internal/perf/measure"
	"ibverbx/internal/perf/report"
	"ibverbx/peer"
)

// All output fits in 80 columns. Column heads match perftest; --verbose adds its parameter block above them.
const (
	tableTitleIndent = 20
	tableRule        = "-------------------------------------------------------------------------------"

	spanRow = " %8.3f s  %-8s  rail %d  %12.2f %s  %5.1f %%\n"

	mebibyte = 1 << 20
)

// perfTable prints a test: the head immediately, rows as results arrive, rails and the verdict last.
type perfTable struct {
	printer
	head measure.Report
	unit report.Unit
	all  bool // print all parameters, lanes and paths
}

// newPerfTable prints the head of the table.
func newPerfTable(s streams, head measure.Report, f *perfFlags) *perfTable {
	t := &perfTable{printer: printer{w: s.out, colour: s.colours()}, head: head, unit: report.Units(f.out.gbits), all: f.out.verbose}
	if t.all {
		t.println(tableRule)
		t.println(strings.Repeat(" ", tableTitleIndent) + report.Title(head))
		t.parameters()
		t.println(tableRule)
	} else {
		t.brief()
	}
	t.println(t.paint(bold, report.Results(&head, t.unit).TextHead()))
	return t
}

// table prints the rows of a table below its head, or nothing for an empty table.
func (t *perfTable) table(rows *htmldoc.Table) {
	for i := range rows.Rows {
		if i == 0 {
			t.println(rows.TextHead())
		}
		t.println(rows.TextRow(i))
	}
}

// brief prints a two-line description of the test.
func (t *perfTable) brief() {
	r := &t.head
	what := report.Plural(r.QPs, "QP") // raw QPs, or a single lane
	if r.Lanes > 1 {
		what = fmt.Sprintf("%s, %d lanes", report.Plural(r.Rails, "rail"), r.Lanes)
	}
	over := r.Provider
	if r.Link != "" {
		over += " over " + r.Link
	}
	if r.Remote != "" && r.Link != string(peer.LinkShm) {
		protection, _, _ := strings.Cut(report.PacketsText(r), ":")
		over += ", " + protection
	}
	t.wrap("", fmt.Sprintf("%s %s of %s, %s", t.paint(bold, report.Title(*r)+":"), what, r.Connection, over))
	var parts []string
	if r.Remote != "" {
		parts = append(parts, r.Role+" with "+r.Remote)
	}
	parts = append(parts, fmt.Sprintf("MTU %d", r.MTU), fmt.Sprintf("TX depth %d", r.TxDepth))
	if r.Lanes > 1 {
		parts = append(parts, "scheme "+r.Scheme, "policy "+r.Table.Policy)
	}
	if memory := report.MemoryText(r); memory != measure.HostMemory {
		parts = append(parts, "memory "+memory)
	}
	if r.Mode == measure.Latency {
		parts = append(parts, "times in usec")
	}
	t.wrap("", strings.Join(parts, ", "))
	if imp := r.Run.Options.Impair; len(imp) > 0 {
		texts := make([]string, len(imp))
		for i := range imp {
			texts[i] = imp[i].String()
		}
		t.wrap("", "impaired: "+strings.Join(texts, "; "))
	}
	if len(r.Settings) > 0 {
		t.wrap("", "settings: "+report.SettingsText(r.Settings))
	}
}

// parameters prints the parameter block. perftest aligns it with tabs; the columns are the same.
func (t *perfTable) parameters() {
	for _, line := range report.Parameters(&t.head) {
		if len(line) == 1 {
			t.printf(" %-16s: %s\n", line[0].Name, line[0].Value)
			continue
		}
		t.printf(" %-16s: %-12s %-15s: %s\n", line[0].Name, line[0].Value, line[1].Name, line[1].Value)
	}
}

// row prints one result.
func (t *perfTable) row(r measure.Result) {
	one := t.head
	one.Results = []measure.Result{r}
	t.println(report.Results(&one, t.unit).TextRow(0))
	if b := r.BandwidthResult; b != nil && b.Lost > 0 {
		t.printf(" (%d messages of %d bytes were lost)\n", b.Lost, r.Size)
	}
}

// span prints the rate of each rail over one time span.
func (t *perfTable) span(size int, s measure.Span) {
	total := 0.0
	for _, rate := range s.PerRail {
		total += rate
	}
	for rail, rate := range s.PerRail {
		t.printf(spanRow, s.To, measure.FormatSize(size), rail, rate*t.unit.Scale, t.unit.Name, 100*rate/max(total, 1))
	}
}

// end prints the summary below the rows and returns the first print error. failed is the error of the test.
func (t *perfTable) end(r measure.Report, failed error) error {
	if len(r.Results) == 0 {
		return t.err
	}
	t.carried(&r)
	if r.Failover != nil {
		t.failover(&r)
	}
	switch {
	case r.Mode == measure.Latency:
		what := "from the post to the completion, a full round trip"
		if r.Op == measure.Send || r.Op == measure.WriteImm {
			what = "half of the round trip of a ping-pong"
		}
		t.printf(" t is %s\n", what)
	case t.head.Remote == "":
		t.memcpy(r.Results)
	}
	t.verdicts(&r, failed)
	return t.err
}

// verdicts prints the health verdict and the result of the data check.
func (t *perfTable) verdicts(r *measure.Report, failed error) {
	mark := green
	if !strings.HasPrefix(r.Verdict, "healthy") && !strings.HasPrefix(r.Verdict, "no trouble") {
		mark = yellow
	}
	t.wrap(" ", t.paint(mark, "verdict:")+" "+r.Verdict)
	if !r.Checked || failed != nil {
		return
	}
	messages, bytes := int64(0), 0.0
	for i := range r.Results {
		messages += r.Results[i].Iterations
		bytes += float64(r.Results[i].Iterations) * float64(r.Results[i].Size)
	}
	t.println(t.paint(green, fmt.Sprintf(" data check: %d messages, %.4g MiB, 0 errors", messages, bytes/mebibyte)))
}

// memcpy prints the copy rate at 1 MiB, which fits in caches, and at the largest size.
func (t *perfTable) memcpy(rows []measure.Result) {
	largest := &rows[0]
	line := func(r *measure.Result) {
		name := report.CopyName(&t.head)
		to := name
		if name == report.GPUCopy { // its rates are wide, so save columns
			to = "it"
		}
		t.printf(" %s at %s: %.2f %s (%.2f GB/s); ratio is BW average to %s\n",
			name, measure.FormatSize(r.Size), r.CopyBytesPerSecond*t.unit.Scale, t.unit.Name, r.CopyBytesPerSecond/1e9, to)
	}
	for i := range rows {
		if r := &rows[i]; r.Size == mebibyte {
			line(r)
		}
		if rows[i].Size > largest.Size {
			largest = &rows[i]
		}
	}
	if largest.Size != mebibyte {
		line(largest)
	}
}

const (
	railRow = " rail %-2d %6.2f %% %12.2f MiB  %s\n"

	healthIndent = "         "

	// foldLanes is the maximum number of lanes listed without --verbose: the first half and the last half of it, which
	// includes the message and notify lanes.
	foldLanes = 16
	// evenLanes is the largest shortfall behind a rail's busiest data lane, as a fraction, that still counts as even.
	evenLanes = 0.2
)

// carried prints the bytes, share and health of each rail. Lanes follow with --verbose or if they differ.
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
	if deaths > 0 && r.Failover == nil { // otherwise the outage report includes it
		t.printf(" lanes were lost %d times and rebuilt\n", deaths)
	}
	if t.all || report.Judged(r) && differ(r.PerLane) {
		t.lanes(r.PerLane)
	}
	if t.all {
		t.table(report.Paths(r.PerLane))
	}
}

// differ reports whether some data lane carried much less than the busiest one on its rail. Differences between rails
// show in the rail lines.
func differ(lanes []measure.Lane) bool {
	most := make(map[int]float64)
	for i := range lanes {
		if l := &lanes[i]; l.Role == "data" {
			most[l.Rail] = max(most[l.Rail], l.Share)
		}
	}
	return slices.ContainsFunc(lanes, func(l measure.Lane) bool { return l.Role == "data" && l.Share < most[l.Rail]*(1-evenLanes) })
}

// lanes prints the traffic of each lane.
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

// summary summarizes the unlisted lanes in one line.
func summary(lanes []measure.Lane) string {
	low, high, sum := lanes[0].Share, 0.0, 0.0
	for i := range lanes {
		share := lanes[i].Share
		low, high, sum = min(low, share), max(high, share), sum+share
	}
	return fmt.Sprintf(" lanes %d to %d carried %.2f %%, %.2f to %.2f %% each; see all with --verbose",
		lanes[0].Lane, lanes[len(lanes)-1].Lane, 100*sum, 100*low, 100*high)
}

// sparkColumns is the maximum width of a timeline. Longer timelines are folded.
const sparkColumns = 50

// failover prints a rail loss: rates over time, rates before, during and after it, events and replayed work.
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

// timeline prints each rail's rate over time as a line of blocks. It averages spans to fit the width.
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
		t.printf(" rail %-2d %-18s|%s|\n", rail, name, monitor.Blocks(rates[rail], 1, top)[0])
	}
	t.printf(" a column is %.0f ms, a full block %.2f %s\n", 1000*spans[len(spans)-1].To/float64(len(rates[0])), top*t.unit.Scale, t.unit.Name)
	t.println(tableRule)
}
