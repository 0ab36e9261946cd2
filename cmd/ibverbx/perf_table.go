package main

import (
	"fmt"
	"slices"
	"strings"

	"ibverbx/internal/htmldoc"
	"ibverbx/internal/live"
	"ibverbx/internal/perf/measure"
	"ibverbx/internal/perf/report"
	"ibverbx/peer"
)

// Everything fits 80 columns. Column heads are those of perftest, and with --verbose its block of parameters is
// above them.
const (
	tableTitleIndent = 20
	tableRule        = "-------------------------------------------------------------------------------"

	spanRow = " %8.3f s  %-8s  rail %d  %12.2f %s  %5.1f %%\n"

	mebibyte = 1 << 20
)

// perfTable prints a test: the head at once, rows as they come, rails and the verdict at the end.
type perfTable struct {
	printer
	head measure.Report
	unit report.Unit
	all  bool // also all parameters, lanes and paths
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

// table prints the rows of a table, below its head if it has rows.
func (t *perfTable) table(rows *htmldoc.Table) {
	for i := range rows.Rows {
		if i == 0 {
			t.println(rows.TextHead())
		}
		t.println(rows.TextRow(i))
	}
}

// brief prints the two lines that say what is measured.
func (t *perfTable) brief() {
	r := &t.head
	what := fmt.Sprintf("%d QPs", r.QPs)
	switch {
	case r.Lanes == 1:
		what = "1 QP"
	case r.Lanes > 1:
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

// parameters prints the block of parameters. perftest aligns with tabs; the columns are the same.
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

// span prints the rate of each rail in a stretch of time.
func (t *perfTable) span(size int, s measure.Span) {
	total := 0.0
	for _, rate := range s.PerRail {
		total += rate
	}
	for rail, rate := range s.PerRail {
		t.printf(spanRow, s.To, measure.FormatSize(size), rail, rate*t.unit.Scale, t.unit.Name, 100*rate/max(total, 1))
	}
}

// end prints what follows the rows, and returns the first error of all printing. failed is the error of the test.
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

// verdicts prints how healthy the rails were, and what the check of the data found.
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

// memcpy prints the rate of a copy at 1 MiB, which caches hold, and at the largest size.
func (t *perfTable) memcpy(rows []measure.Result) {
	largest := &rows[0]
	say := func(r *measure.Result) {
		name := report.CopyName(&t.head)
		to := name
		if name == report.GPUCopy { // its rates are wide
			to = "it"
		}
		t.printf(" %s at %s: %.2f %s (%.2f GB/s); ratio is BW average to %s\n",
			name, measure.FormatSize(r.Size), r.CopyBytesPerSecond*t.unit.Scale, t.unit.Name, r.CopyBytesPerSecond/1e9, to)
	}
	for i := range rows {
		if r := &rows[i]; r.Size == mebibyte {
			say(r)
		}
		if rows[i].Size > largest.Size {
			largest = &rows[i]
		}
	}
	if largest.Size != mebibyte {
		say(largest)
	}
}

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
