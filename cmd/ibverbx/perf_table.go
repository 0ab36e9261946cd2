package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"ibverbx/internal/perf"
	"ibverbx/peer"
)

// The layout is that of perftest_parameters.h: rules of 87 dashes, the title at column
// 20, the block of parameters, and the column heads.
const (
	tableTitleIndent = 20
	tableRule        = "---------------------------------------------------------------------------------------"

	bandwidthHead    = " #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]   memcpy[MiB/sec]  ratio"
	bandwidthHeadGig = " #bytes     #iterations    BW peak[Gb/sec]     BW average[Gb/sec]    MsgRate[Mpps]   memcpy[Gb/sec]   ratio"
	bandwidthRow     = " %-10d %-14d %-19.2f %-21.2f %-15.6f %-16.2f %.2f\n"
	remoteRow        = " %-10d %-14d %-19.2f %-21.2f %.6f\n"

	spanRow = " %8.3f s  %-8s  rail %d  %12.2f %s  %5.1f %%\n"

	latencyHead = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]"
	latencyRow  = " %-21s %-14.3f %-12.3f %-18.3f %-14.3f %-15.3f %-22.3f %.3f\n"

	mebibyte = 1 << 20
)

// perfTable prints a test as perftest does: the head at once, rows as they come.
type perfTable struct {
	printer
	head  perf.Report
	unit  string
	scale float64 // units of the columns in one byte per second
	all   bool    // a line for every lane
	paths int     // UC QPs of an RC QP with --transport uc
}

// newPerfTable prints the head of the table.
func newPerfTable(w io.Writer, head perf.Report, f *perfFlags) *perfTable {
	t := &perfTable{printer: printer{w: w}, head: head, unit: "MiB/sec", scale: 1.0 / mebibyte, all: f.out.verbose, paths: wrapPaths(&f.settings.Reliable)}
	columns := bandwidthHead
	if f.out.gbits {
		t.unit, t.scale, columns = "Gb/sec", 8/1e9, bandwidthHeadGig
	}
	if head.Remote != "" {
		columns, _, _ = strings.Cut(columns, "   memcpy")
	}
	if head.Mode == perf.Latency {
		columns = latencyHead
	}
	t.println(tableRule)
	t.println(strings.Repeat(" ", tableTitleIndent) + title(head))
	t.parameters()
	t.println(tableRule)
	t.println(columns)
	return t
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
		// Sizes from 1 MiB on are wider than their column; only the next column moves.
		first := fmt.Sprintf("%-6d %d", r.Size, r.Iterations)
		t.printf(latencyRow, first, l.Min, l.Max, l.Typical, l.Avg, l.Stdev, l.P99, l.P999)
		return
	}
	b := r.BandwidthResult
	if t.head.Remote != "" {
		t.printf(remoteRow, r.Size, r.Iterations, b.PeakBytesPerSecond*t.scale, b.BytesPerSecond*t.scale, b.MessagesPerSecond/1e6)
		return
	}
	t.printf(bandwidthRow, r.Size, r.Iterations, b.PeakBytesPerSecond*t.scale, b.BytesPerSecond*t.scale,
		b.MessagesPerSecond/1e6, b.CopyBytesPerSecond*t.scale, b.RatioToCopy)
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

// end prints what follows the rows, and returns the first error of all printing.
func (t *perfTable) end(r perf.Report) error {
	t.println(tableRule)
	if len(r.Results) > 0 {
		t.carried(&r)
	}
	if r.Failover != nil {
		t.failover(&r)
	}
	if r.Mode == perf.Latency {
		what := "from the post to the completion, a full round trip"
		if r.Op == perf.Send || r.Op == perf.WriteImm {
			what = "half of the round trip of a ping-pong"
		}
		t.printf(" t is %s; usec = 10^-6 s\n", what)
		return t.err
	}
	if len(r.Results) > 0 && t.head.Remote != "" {
		t.printf(" MiB = 2^20 bytes, Mpps = 10^6 messages/s\n")
	} else if len(r.Results) > 0 {
		t.printf(" memcpy on this machine: %s\n", t.memcpy(r.Results))
		t.printf(" ratio is BW average over memcpy of the same size; MiB = 2^20 bytes, GB = 10^9 bytes, Mpps = 10^6 messages/s\n")
	}
	return t.err
}

// memcpy is the rate of a copy at 1 MiB, which caches hold, and at the largest size.
func (t *perfTable) memcpy(rows []perf.Result) string {
	var said []string
	largest := &rows[0]
	say := func(r *perf.Result) {
		said = append(said, fmt.Sprintf("%.2f %s (%.2f GB/s) at %s",
			r.CopyBytesPerSecond*t.scale, t.unit, r.CopyBytesPerSecond/1e9, perf.FormatSize(r.Size)))
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
	return strings.Join(said, ", ")
}
