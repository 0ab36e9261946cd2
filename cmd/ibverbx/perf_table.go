package main

import (
	"fmt"
	"strconv"
	"strings"

	"ibverbx/internal/perf/measure"
	"ibverbx/internal/perf/report"
	"ibverbx/peer"
)

// Everything fits 80 columns. Column heads are those of perftest, and with --verbose its block of parameters is
// above them.
const (
	tableTitleIndent = 20
	tableRule        = "-------------------------------------------------------------------------------"

	bandwidthHead    = " #bytes    #iterations BW peak[MiB/sec] BW average[MiB/sec] MsgRate[Mpps] ratio"
	bandwidthHeadGig = " #bytes    #iterations BW peak[Gb/sec]  BW average[Gb/sec]  MsgRate[Mpps] ratio"
	bandwidthRow     = " %-9d %-11d %-16.2f %-19.2f %-13.6f %.2f\n"
	remoteRow        = " %-9d %-11d %-16.2f %-19.2f %.6f\n"

	spanRow = " %8.3f s  %-8s  rail %d  %12.2f %s  %5.1f %%\n"

	latencyHead = " #bytes  #iterations t_min   t_max    t_typical t_avg   t_stdev 99%     99.9%"
	latencyRow  = " %-7d %-11d %-7.2f %-8.2f %-9.2f %-7.2f %-7.2f %-7.2f %.2f\n"

	mebibyte = 1 << 20
)

// perfTable prints a test: the head at once, rows as they come, rails and the verdict at the end.
type perfTable struct {
	printer
	head  measure.Report
	unit  string
	scale float64 // units of the columns in one byte per second
	all   bool    // also all parameters, lanes and paths
	paths int     // UC QPs of an RC QP with --transport uc
}

// newPerfTable prints the head of the table.
func newPerfTable(s streams, head measure.Report, f *perfFlags) *perfTable {
	t := &perfTable{
		printer: printer{w: s.out, colour: s.colours()}, head: head, unit: "MiB/sec", scale: 1.0 / mebibyte,
		all: f.out.verbose, paths: wrapPaths(&f.settings.Reliable),
	}
	columns := bandwidthHead
	if f.out.gbits {
		t.unit, t.scale, columns = "Gb/sec", 8/1e9, bandwidthHeadGig
	}
	if head.Remote != "" {
		columns, _, _ = strings.Cut(columns, " ratio")
	}
	if head.Mode == measure.Latency {
		columns = latencyHead
	}
	if t.all {
		t.println(tableRule)
		t.println(strings.Repeat(" ", tableTitleIndent) + report.Title(head))
		t.parameters()
		t.println(tableRule)
	} else {
		t.brief()
	}
	t.println(t.paint(bold, columns))
	return t
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

// parameters prints the block of parameters, without those that mean nothing here.
func (t *perfTable) parameters() {
	r := &t.head
	// perftest aligns with tabs; the columns are the same.
	both := func(left, value, right, other string) {
		t.printf(" %-16s: %-12s %-15s: %s\n", left, value, right, other)
	}
	if r.Remote != "" {
		t.printf(" This side       : %-13sOther side     : %s\n", r.Role, r.Remote)
		t.printf(" Packets         : %s\n", report.PacketsText(r))
	}
	both("Dual-port", "OFF", "Device", r.Device+" -> "+r.Peer)
	both("Number of qps", strconv.Itoa(r.QPs), "Transport type", "IB")
	both("Connection type", r.Connection, "Using SRQ", "OFF")
	both("Provider", r.Provider, "Link", r.Link)
	t.printf(" Memory          : %s\n", report.MemoryText(r))
	if r.Link == "udp" && r.LinkReason != "" {
		t.printf(" No shm          : %s\n", r.LinkReason)
	}
	t.printf(" Transport       : %s\n", transportText(r.Transport, t.paths))
	t.virtual()
	t.printf(" TX depth        : %d\n", r.TxDepth)
	if r.CQMod > 0 {
		t.printf(" CQ Moderation   : %d\n", r.CQMod)
	} else if r.Mode == measure.Bandwidth {
		t.printf(" CQ Moderation   : by size\n")
	}
	t.printf(" Mtu             : %d[B]\n", r.MTU)
	t.printf(" Link type       : %s\n", r.Table.LinkLayer)
	if r.Op == measure.Read || r.Op == measure.Atomic {
		t.printf(" Outstand reads  : %d\n", r.Table.OutstandingReads)
	} else {
		t.printf(" Max inline data : 0[B]\n")
	}
	t.printf(" Data check      : %s\n", onOff(r.Checked))
	if len(r.Settings) > 0 {
		t.printf(" Settings        : %s\n", report.SettingsText(r.Settings))
	}
}

// virtual prints the parameters of the VirtualQP. Scheme and policy mean nothing for a single lane.
func (t *perfTable) virtual() {
	r := &t.head
	if r.Lanes == 0 {
		return // UC or UD
	}
	lanes := strconv.Itoa(r.Lanes)
	if r.Lanes == 1 {
		t.printf(" Rails           : %-13dLanes          : %s, straight through\n", r.Rails, lanes)
		return
	}
	cut := "by size"
	if r.Table.Fragment > 0 {
		cut = measure.FormatSize(r.Table.Fragment)
	}
	t.printf(" Rails           : %-13dLanes          : %s\n", r.Rails, lanes)
	t.printf(" Scheme          : %-13sPolicy         : %s\n", r.Scheme, r.Table.Policy)
	t.printf(" Fragment        : %s\n", cut)
}

// transportText is what makes the QPs reliable.
func transportText(t measure.Transport, paths int) string {
	switch t {
	case measure.TransportUC:
		return fmt.Sprintf("uc, RC made of %d UC QPs each, in software", paths)
	case measure.TransportRaw:
		return "raw, nothing is retransmitted"
	case measure.TransportRC:
	}
	return "rc, by the NIC"
}

func onOff(b bool) string {
	if b {
		return "ON"
	}
	return "OFF"
}

// row prints one result.
func (t *perfTable) row(r measure.Result) {
	if l := r.LatencyResult; l != nil {
		t.printf(latencyRow, r.Size, r.Iterations, l.Min, l.Max, l.Typical, l.Avg, l.Stdev, l.P99, l.P999)
		return
	}
	b := r.BandwidthResult
	if t.head.Remote != "" {
		t.printf(remoteRow, r.Size, r.Iterations, b.PeakBytesPerSecond*t.scale, b.BytesPerSecond*t.scale, b.MessagesPerSecond/1e6)
		return
	}
	t.printf(bandwidthRow, r.Size, r.Iterations, b.PeakBytesPerSecond*t.scale, b.BytesPerSecond*t.scale, b.MessagesPerSecond/1e6, b.RatioToCopy)
	if b.Lost > 0 {
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
		t.printf(spanRow, s.To, measure.FormatSize(size), rail, rate*t.scale, t.unit, 100*rate/max(total, 1))
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
			name, measure.FormatSize(r.Size), r.CopyBytesPerSecond*t.scale, t.unit, r.CopyBytesPerSecond/1e9, to)
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
