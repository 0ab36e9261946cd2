package main

import (
	"fmt"
	"strings"

	"ibverbx/internal/htmldoc"
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
