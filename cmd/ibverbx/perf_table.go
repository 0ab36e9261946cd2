package main

import (
	"fmt"
	"strconv"
	"strings"

	"ibverbx/internal/perf"
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
	head  perf.Report
	unit  string
	scale float64 // units of the columns in one byte per second
	all   bool    // also all parameters, lanes and paths
	paths int     // UC QPs of an RC QP with --transport uc
}

// newPerfTable prints the head of the table.
func newPerfTable(s streams, head perf.Report, f *perfFlags) *perfTable {
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
	if head.Mode == perf.Latency {
		columns = latencyHead
	}
	if t.all {
		t.println(tableRule)
		t.println(strings.Repeat(" ", tableTitleIndent) + title(head))
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
		what = fmt.Sprintf("%s, %d lanes", plural(r.Rails, "rail"), r.Lanes)
	}
	over := r.Provider
	if r.Link != "" {
		over += " over " + r.Link
	}
	if r.Remote != "" && r.Link != string(peer.LinkShm) {
		protection, _, _ := strings.Cut(packetsText(r), ":")
		over += ", " + protection
	}
	t.wrap("", fmt.Sprintf("%s %s of %s, %s", t.paint(bold, title(*r)+":"), what, r.Connection, over))
	var parts []string
	if r.Remote != "" {
		parts = append(parts, r.Role+" with "+r.Remote)
	}
	parts = append(parts, fmt.Sprintf("MTU %d", r.MTU), fmt.Sprintf("TX depth %d", r.TxDepth))
	if r.Lanes > 1 {
		parts = append(parts, "scheme "+r.Scheme, "policy "+r.Table.Policy)
	}
	if memory := memoryText(r); memory != perf.HostMemory {
		parts = append(parts, "memory "+memory)
	}
	if r.Mode == perf.Latency {
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
		t.wrap("", "settings: "+settingsText(r.Settings))
	}
}

// plural is a number of things.
func plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// title is the name that perftest gives the test.
func title(r perf.Report) string {
	words := map[perf.Op]string{
		perf.Write: "RDMA_Write", perf.WriteImm: "RDMA_Write_With_Imm", perf.Read: "RDMA_Read", perf.Send: "Send", perf.Atomic: "Atomic FETCH_AND_ADD",
	}[r.Op]
	if r.Bidirectional {
		words += " Bidirectional"
	}
	if r.Mode == perf.Latency {
		return words + " Latency Test"
	}
	return words + " BW Test"
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
		t.printf(" Packets         : %s\n", packetsText(r))
	}
	both("Dual-port", "OFF", "Device", r.Device+" -> "+r.Peer)
	both("Number of qps", strconv.Itoa(r.QPs), "Transport type", "IB")
	both("Connection type", r.Connection, "Using SRQ", "OFF")
	both("Provider", r.Provider, "Link", r.Link)
	t.printf(" Memory          : %s\n", memoryText(r))
	if r.Link == "udp" && r.LinkReason != "" {
		t.printf(" No shm          : %s\n", r.LinkReason)
	}
	t.printf(" Transport       : %s\n", transportText(r.Transport, t.paths))
	t.virtual()
	t.printf(" TX depth        : %d\n", r.TxDepth)
	if r.CQMod > 0 {
		t.printf(" CQ Moderation   : %d\n", r.CQMod)
	} else if r.Mode == perf.Bandwidth {
		t.printf(" CQ Moderation   : by size\n")
	}
	t.printf(" Mtu             : %d[B]\n", r.MTU)
	t.printf(" Link type       : %s\n", r.Table.LinkLayer)
	if r.Op == perf.Read || r.Op == perf.Atomic {
		t.printf(" Outstand reads  : %d\n", r.Table.OutstandingReads)
	} else {
		t.printf(" Max inline data : 0[B]\n")
	}
	t.printf(" Data check      : %s\n", onOff(r.Checked))
	if len(r.Settings) > 0 {
		t.printf(" Settings        : %s\n", settingsText(r.Settings))
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
		cut = perf.FormatSize(r.Table.Fragment)
	}
	t.printf(" Rails           : %-13dLanes          : %s\n", r.Rails, lanes)
	t.printf(" Scheme          : %-13sPolicy         : %s\n", r.Scheme, r.Table.Policy)
	t.printf(" Fragment        : %s\n", cut)
}

// packetsText is how packets between processes are protected.
func packetsText(r *perf.Report) string {
	switch {
	case r.Sealed:
		return "sealed: encrypted and authenticated"
	case r.Link == string(peer.LinkShm):
		return "none, memory of one user on one host"
	}
	return "plain: neither encrypted nor authenticated"
}

// transportText is what makes the QPs reliable.
func transportText(t perf.Transport, paths int) string {
	switch t {
	case perf.TransportUC:
		return fmt.Sprintf("uc, RC made of %d UC QPs each, in software", paths)
	case perf.TransportRaw:
		return "raw, nothing is retransmitted"
	case perf.TransportRC:
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
func (t *perfTable) row(r perf.Result) {
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
func (t *perfTable) span(size int, s perf.Span) {
	total := 0.0
	for _, rate := range s.PerRail {
		total += rate
	}
	for rail, rate := range s.PerRail {
		t.printf(spanRow, s.To, perf.FormatSize(size), rail, rate*t.scale, t.unit, 100*rate/max(total, 1))
	}
}

// end prints what follows the rows, and returns the first error of all printing. failed is the error of the test.
func (t *perfTable) end(r perf.Report, failed error) error {
	if len(r.Results) == 0 {
		return t.err
	}
	t.carried(&r)
	if r.Failover != nil {
		t.failover(&r)
	}
	switch {
	case r.Mode == perf.Latency:
		what := "from the post to the completion, a full round trip"
		if r.Op == perf.Send || r.Op == perf.WriteImm {
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
func (t *perfTable) verdicts(r *perf.Report, failed error) {
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
func (t *perfTable) memcpy(rows []perf.Result) {
	largest := &rows[0]
	say := func(r *perf.Result) {
		name := copyName(&t.head)
		to := name
		if name == gpuCopy { // its rates are wide
			to = "it"
		}
		t.printf(" %s at %s: %.2f %s (%.2f GB/s); ratio is BW average to %s\n",
			name, perf.FormatSize(r.Size), r.CopyBytesPerSecond*t.scale, t.unit, r.CopyBytesPerSecond/1e9, to)
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
