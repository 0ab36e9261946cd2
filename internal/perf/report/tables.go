package report

import (
	"fmt"
	"slices"
	"strconv"

	"ibverbx/internal/htmldoc"
	"ibverbx/internal/perf/measure"
	"ibverbx/peer"
)

// Unit is the unit of rates.
type Unit struct {
	Name string
	// Scale converts from bytes per second.
	Scale float64
}

// Units returns MiB/sec, or Gb/sec.
func Units(gbits bool) Unit {
	if gbits {
		return Unit{Name: "Gb/sec", Scale: 8 / 1e9}
	}
	return Unit{Name: "MiB/sec", Scale: 1.0 / mebibyte}
}

func decimal(x float64, digits int) string { return strconv.FormatFloat(x, 'f', digits, 64) }

// Results has a row for each size, with the column heads of perftest. In HTML, the rate of the copy is the last column.
func Results(r *measure.Report, u Unit) *htmldoc.Table {
	t := &htmldoc.Table{Head: []string{"#bytes", "#iterations"}}
	if r.Mode == measure.Latency {
		t.Head = append(t.Head, "t_min", "t_max", "t_typical", "t_avg", "t_stdev", "99%", "99.9%")
		t.Widths = []int{7, 11, 7, 8, 9, 7, 7, 7}
	} else {
		t.Head = append(t.Head, "BW peak["+u.Name+"]", "BW average["+u.Name+"]", "MsgRate[Mpps]")
		t.Widths = []int{9, 11, 16, 19}
		if r.Remote == "" {
			t.Head, t.Widths = append(t.Head, "ratio", CopyName(r)+"["+u.Name+"]"), append(t.Widths, 13)
		}
	}
	for i := range r.Results {
		res := &r.Results[i]
		cells := []string{strconv.Itoa(res.Size), strconv.FormatInt(res.Iterations, 10)}
		if l := res.LatencyResult; l != nil {
			for _, v := range []float64{l.Min, l.Max, l.Typical, l.Avg, l.Stdev, l.P99, l.P999} {
				cells = append(cells, decimal(v, 2))
			}
		} else if b := res.BandwidthResult; b != nil {
			cells = append(cells, decimal(b.PeakBytesPerSecond*u.Scale, 2), decimal(b.BytesPerSecond*u.Scale, 2), decimal(b.MessagesPerSecond/1e6, 6))
			if r.Remote == "" {
				cells = append(cells, decimal(b.RatioToCopy, 2), decimal(b.CopyBytesPerSecond*u.Scale, 2))
			}
		}
		t.Rows = append(t.Rows, htmldoc.Cells(cells...))
	}
	return t
}

// Rails returns the traffic per rail, for HTML.
func Rails(r *measure.Report) *htmldoc.Table {
	t := &htmldoc.Table{Head: []string{"rail", "NICs", "share[%]", "MiB", "fragments", "doorbells", "CQEs", "health"}}
	for i := range r.PerRail {
		rail := &r.PerRail[i]
		t.Rows = append(t.Rows, carried(&rail.Carried, rail.Health, strconv.Itoa(i), EndsText(rail, r.Remote != "")))
	}
	return t
}

// Lanes returns the traffic per lane. In HTML, the last column is its health.
func Lanes(lanes []measure.Lane) *htmldoc.Table {
	t := &htmldoc.Table{
		Title: "Lanes", Head: []string{"#lane", "rail", "QPN", "role", "share[%]", "MiB", "fragments", "doorbells", "CQEs", "health"},
		Widths: []int{5, 4, 8, 7, 8, 10, 9, 9},
	}
	for i := range lanes {
		l := &lanes[i]
		t.Rows = append(t.Rows, carried(&l.Carried, l.Health, strconv.Itoa(l.Lane), strconv.Itoa(l.Rail), fmt.Sprintf("%#x", l.QPN), l.Role))
	}
	return t
}

// carried returns the table row of a rail or a lane.
func carried(c *measure.Carried, h *measure.Health, names ...string) []htmldoc.Cell {
	health := htmldoc.Cell{Text: "no counters"}
	if text := HealthText(h); text != "" {
		health = htmldoc.Cell{Text: text, Style: htmldoc.Bad}
	} else if h != nil {
		health = htmldoc.Cell{Text: "nothing lost", Style: htmldoc.Good}
	}
	cells := htmldoc.Cells(append(names, decimal(100*c.Share, 2), decimal(float64(c.Bytes)/mebibyte, 2),
		fmt.Sprint(c.Fragments), fmt.Sprint(c.Doorbells), fmt.Sprint(c.CQEs))...)
	return append(cells, health)
}

// Paths returns the traffic per path.
func Paths(lanes []measure.Lane) *htmldoc.Table {
	t := &htmldoc.Table{
		Title: "Paths", Head: []string{"#lane", "path", "QPN", "state", "chunks", "retrans.", "lost", "RTT[us]", "queue[us]"},
		Widths: []int{5, 4, 8, 7, 9, 9, 9, 7},
	}
	for i := range lanes {
		for k := range lanes[i].Paths {
			p := &lanes[i].Paths[k]
			t.Rows = append(t.Rows, htmldoc.Cells(strconv.Itoa(lanes[i].Lane), strconv.Itoa(k), fmt.Sprintf("%#x", p.QPN), p.State,
				fmt.Sprint(p.Sent), fmt.Sprint(p.Retransmitted), fmt.Sprint(p.Lost), decimal(p.RTT, 1), decimal(p.QueueDelay, 1)))
		}
	}
	return t
}

// Phases has the rates before, during and after an outage, and the share of each rail.
func Phases(r *measure.Report, u Unit) *htmldoc.Table {
	t := &htmldoc.Table{Head: []string{"phase", "from[s]", "to[s]", "BW average[" + u.Name + "]"}, Widths: []int{9, 10, 10}}
	for rail := range r.PerRail {
		t.Head, t.Widths = append(t.Head, fmt.Sprintf("rail %d[%%]", rail)), append(t.Widths, 10)
	}
	t.Widths = slices.Insert(t.Widths, 3, 21)[:len(t.Head)-1]
	for i, s := range r.Failover.Phases {
		total := 0.0
		for _, rate := range s.PerRail {
			total += rate
		}
		cells := []string{[...]string{"before", "during", "after"}[i], decimal(s.From, 3), decimal(s.To, 3), decimal(s.BytesPerSecond*u.Scale, 2)}
		for _, rate := range s.PerRail {
			cells = append(cells, decimal(100*rate/max(total, 1), 2))
		}
		t.Rows = append(t.Rows, htmldoc.Cells(cells...))
	}
	return t
}

// EventTable has the events of an outage.
func EventTable(r *measure.Report) *htmldoc.Table {
	t := &htmldoc.Table{Title: "Events", Head: []string{"time[s]", "end", "event"}, Widths: []int{10, 10}}
	for _, e := range Events(r.Failover.Events) {
		t.Rows = append(t.Rows, htmldoc.Cells(decimal(e.At, 3), e.End, EventText(r, &e)))
	}
	return t
}

// Parameters lists the parameters of the test under their names in perftest, one or two per line. It skips irrelevant ones.
func Parameters(r *measure.Report) (lines [][]htmldoc.Fact) {
	add := func(texts ...string) {
		line := []htmldoc.Fact{{Name: texts[0], Value: texts[1]}}
		if len(texts) > 2 {
			line = append(line, htmldoc.Fact{Name: texts[2], Value: texts[3]})
		}
		lines = append(lines, line)
	}
	if r.Remote != "" {
		add("This side", r.Role, "Other side", r.Remote)
		add("Packets", PacketsText(r))
	}
	add("Dual-port", "OFF", "Device", r.Device+" -> "+r.Peer)
	add("Number of qps", strconv.Itoa(r.QPs), "Transport type", "IB")
	add("Connection type", r.Connection, "Using SRQ", "OFF")
	add("Provider", r.Provider, "Link", r.Link)
	add("Memory", MemoryText(r))
	if r.Link == "udp" && r.LinkReason != "" {
		add("No shm", r.LinkReason)
	}
	add("Transport", map[peer.Transport]string{
		peer.TransportRC: "rc, by the NIC", measure.TransportRaw: "raw, nothing is retransmitted",
		peer.TransportUC: fmt.Sprintf("uc, RC made of %d UC QPs each, in software", r.Table.Paths),
		peer.TransportUD: fmt.Sprintf("ud, RC over %d UD QPs of each NIC, in software", r.Table.Paths),
	}[r.Transport])
	switch rails, lanes := strconv.Itoa(r.Rails), strconv.Itoa(r.Lanes); {
	case r.Lanes == 1: // scheme and policy are unused
		add("Rails", rails, "Lanes", lanes+", straight through")
	case r.Lanes > 1:
		add("Rails", rails, "Lanes", lanes)
		add("Scheme", r.Scheme, "Policy", r.Table.Policy)
		add("Fragment", bySize(r.Table.Fragment, measure.FormatSize))
	}
	add("TX depth", strconv.Itoa(r.TxDepth))
	if r.CQMod > 0 || r.Mode == measure.Bandwidth {
		add("CQ Moderation", bySize(r.CQMod, strconv.Itoa))
	}
	add("Mtu", fmt.Sprintf("%d[B]", r.MTU))
	add("Link type", r.Table.LinkLayer)
	if r.Op == measure.Read || r.Op == measure.Atomic {
		add("Outstand reads", strconv.Itoa(r.Table.OutstandingReads))
	} else {
		add("Max inline data", "0[B]")
	}
	add("Data check", map[bool]string{true: "ON", false: "OFF"}[r.Checked])
	if len(r.Settings) > 0 {
		add("Settings", SettingsText(r.Settings))
	}
	return lines
}

// bySize returns text(n), or "by size" if n is zero.
func bySize(n int, text func(int) string) string {
	if n == 0 {
		return "by size"
	}
	return text(n)
}
