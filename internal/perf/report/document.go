package report

import (
	"fmt"
	"strings"
	"time"

	"ibverbx/internal/htmldoc"
	"ibverbx/internal/perf/measure"
)

// Document is the report of a test.
func Document(r *measure.Report) *htmldoc.Document {
	d := &htmldoc.Document{Title: "ibverbx perf: " + Title(*r), Summary: "Verdict: " + r.Verdict}
	if r.Interrupted {
		d.Summary = "The test was interrupted. " + d.Summary
	}
	d.Sections = append(d.Sections, resultSection(r))
	if c := timelineChart(r); len(c.Lines) > 0 {
		d.Sections = append(d.Sections, htmldoc.Section{Title: "Rate over time", Charts: []htmldoc.Chart{c}})
	}
	if s := histogramSection(r); len(s.Charts) > 0 {
		d.Sections = append(d.Sections, s)
	}
	if r.Failover != nil {
		d.Sections = append(d.Sections, failoverSection(r))
	}
	d.Sections = append(d.Sections, carriedSection(r), setupSection(r), environmentSection(&r.Run))
	return d
}

// resultSection has a row for each size and, for several sizes, a chart.
func resultSection(r *measure.Report) htmldoc.Section {
	t := htmldoc.Table{Head: []string{"Size", "Messages", "Peak MiB/s", "Average MiB/s", "Messages/s", CopyName(r) + " MiB/s", "Ratio"}}
	if r.Mode == measure.Latency {
		t.Head = []string{"Size", "Messages", "min µs", "median µs", "mean µs", "99 % µs", "99.9 % µs", "max µs"}
	}
	c := htmldoc.Chart{Title: "Average rate by size", X: "bytes", Y: "MiB/s", Log: true, Lines: []htmldoc.Line{{Name: string(r.Op)}, {Name: CopyName(r)}}}
	if r.Mode == measure.Latency {
		c = htmldoc.Chart{Title: "Latency by size", X: "bytes", Y: "µs", Log: true, Lines: []htmldoc.Line{{Name: "median"}, {Name: "99 %"}}}
	}
	add := func(size int, values ...float64) {
		for i, v := range values {
			if v > 0 {
				c.Lines[i].Points = append(c.Lines[i].Points, htmldoc.Point{X: float64(size), Y: v})
			}
		}
	}
	for i := range r.Results {
		res := &r.Results[i]
		cells := []string{measure.FormatSize(res.Size), fmt.Sprint(res.Iterations)}
		if l := res.LatencyResult; l != nil {
			for _, v := range []float64{l.Min, l.Typical, l.Avg, l.P99, l.P999, l.Max} {
				cells = append(cells, fmt.Sprintf("%.2f", v))
			}
			add(res.Size, l.Typical, l.P99)
		} else if b := res.BandwidthResult; b != nil {
			cells = append(cells, mib(b.PeakBytesPerSecond), mib(b.BytesPerSecond), fmt.Sprintf("%.0f", b.MessagesPerSecond), "-", "-")
			if b.CopyBytesPerSecond > 0 {
				cells[5], cells[6] = mib(b.CopyBytesPerSecond), fmt.Sprintf("%.2f", b.RatioToCopy)
			}
			add(res.Size, b.BytesPerSecond/mebibyte, b.CopyBytesPerSecond/mebibyte)
		}
		t.Rows = append(t.Rows, htmldoc.Cells(cells...))
	}
	s := htmldoc.Section{Title: "Results", Tables: []htmldoc.Table{t}}
	if r.Checked {
		s.Text = "Every byte was compared."
	}
	if len(r.Results) > 1 {
		s.Charts = []htmldoc.Chart{c}
	}
	return s
}

func mib(rate float64) string { return fmt.Sprintf("%.1f", rate/mebibyte) }

// timelineChart has a curve for each rail, one size after the other. Sizes and what happened to rails are marked.
func timelineChart(r *measure.Report) htmldoc.Chart {
	c := htmldoc.Chart{Title: "Rate of each rail", X: "seconds", Y: "MiB/s"}
	for i := range r.PerRail {
		c.Lines = append(c.Lines, htmldoc.Line{Name: fmt.Sprintf("rail %d, %s", i, EndsText(&r.PerRail[i], false))})
	}
	put := func(from float64, spans []measure.Span) (end float64) {
		for i := range spans {
			s := &spans[i]
			for rail, rate := range s.PerRail[:min(len(s.PerRail), len(c.Lines))] {
				l := &c.Lines[rail]
				l.Points = append(l.Points, htmldoc.Point{X: from + s.From, Y: rate / mebibyte}, htmldoc.Point{X: from + s.To, Y: rate / mebibyte})
			}
			end = from + s.To
		}
		return end
	}
	if f := r.Failover; f != nil {
		put(0, f.Timeline)
		for _, e := range Events(f.Events) {
			if e.End == "both" || e.End == "initiator" && e.Event == "recovered" {
				c.Marks = append(c.Marks, htmldoc.Mark{X: e.At, Text: EventText(r, &e), Look: look(e.Event == "port down", htmldoc.Bad)})
			}
		}
		return c
	}
	at := 0.0
	for i := range r.Results {
		if len(r.Results) > 1 {
			c.Marks = append(c.Marks, htmldoc.Mark{X: at, Text: measure.FormatSize(r.Results[i].Size)})
		}
		if end := put(at, r.Results[i].Timeline); end > at {
			at = end
		}
	}
	if at == 0 {
		c.Lines = nil
	}
	return c
}

// look is l if it applies.
func look(applies bool, l htmldoc.Look) htmldoc.Look {
	if applies {
		return l
	}
	return htmldoc.Plain
}

// histogramPart is the part of the messages that a histogram shows. A few late ones would make all others narrow.
const histogramPart = 0.999

// histogramSection has the distribution of the times of each size.
func histogramSection(r *measure.Report) htmldoc.Section {
	s := htmldoc.Section{Title: "Latency"}
	cdf := htmldoc.Chart{Title: "Messages that took no longer", X: "µs", Y: "%", Log: true, Top: 100}
	for i := range r.Results {
		res := &r.Results[i]
		if len(res.Histogram) == 0 {
			continue
		}
		bars := htmldoc.Chart{Title: "Messages of " + measure.FormatSize(res.Size) + " by time, without the last 0.1 %", X: "µs", Y: "messages", Log: true}
		line := htmldoc.Line{Name: measure.FormatSize(res.Size)}
		sum, total := int64(0), int64(0)
		for _, b := range res.Histogram {
			total += b.Count
		}
		for _, b := range res.Histogram {
			sum += b.Count
			from := max(b.From, 0.001)
			if shown := float64(sum-b.Count) / float64(total); shown < histogramPart {
				bars.Bars = append(bars.Bars, htmldoc.Bar{From: from, To: max(b.To, from), Y: float64(b.Count)})
			}
			line.Points = append(line.Points, htmldoc.Point{X: max(b.To, from), Y: 100 * float64(sum) / float64(total)})
		}
		if l := res.LatencyResult; l != nil {
			bars.Marks = []htmldoc.Mark{{X: l.Typical, Text: fmt.Sprintf("median %.2f µs", l.Typical)}, {X: l.P99, Text: fmt.Sprintf("99 %% %.2f µs", l.P99)}}
		}
		cdf.Lines = append(cdf.Lines, line)
		s.Charts = append(s.Charts, bars)
	}
	if len(cdf.Lines) > 0 {
		s.Charts = append([]htmldoc.Chart{cdf}, s.Charts...)
	}
	return s
}

// failoverSection has the phases and the events of a lost rail.
func failoverSection(r *measure.Report) htmldoc.Section {
	f := r.Failover
	s := htmldoc.Section{Title: "The loss of rail " + fmt.Sprint(f.KillRail)}
	s.Text = fmt.Sprintf("%s went out of service, and other lanes took over %s.", Plural(f.LanesDown, "lane"), Plural(int(f.Replayed), "request"))
	phases := htmldoc.Table{Head: []string{"Phase", "from s", "to s", "MiB/s"}}
	for i, p := range f.Phases {
		name := [...]string{"before", "during", "after"}[i]
		phases.Rows = append(phases.Rows, htmldoc.Cells(name, fmt.Sprintf("%.3f", p.From), fmt.Sprintf("%.3f", p.To), mib(p.BytesPerSecond)))
	}
	events := htmldoc.Table{Title: "Events", Head: []string{"Event", "s", "end"}}
	for _, e := range Events(f.Events) {
		events.Rows = append(events.Rows, htmldoc.Cells(EventText(r, &e), fmt.Sprintf("%.3f", e.At), e.End))
	}
	s.Tables = []htmldoc.Table{phases, events}
	return s
}

// carriedSection has what each rail and lane carried, and how healthy it was.
func carriedSection(r *measure.Report) htmldoc.Section {
	head := []string{"MiB", "Share", "Fragments", "Doorbells", "Health"}
	row := func(name string, c *measure.Carried, h *measure.Health) []htmldoc.Cell {
		cells := htmldoc.Cells(name, fmt.Sprintf("%.1f", float64(c.Bytes)/mebibyte), fmt.Sprintf("%.1f %%", 100*c.Share),
			fmt.Sprint(c.Fragments), fmt.Sprint(c.Doorbells), "no counters")
		if h != nil {
			text := HealthText(h)
			cells[5] = htmldoc.Cell{Text: text, Look: look(text != "", htmldoc.Bad)}
			if text == "" {
				cells[5] = htmldoc.Cell{Text: "nothing lost", Look: htmldoc.Good}
			}
		}
		return cells
	}
	rails := htmldoc.Table{Head: append([]string{"Rail"}, head...)}
	for i := range r.PerRail {
		rail := &r.PerRail[i]
		rails.Rows = append(rails.Rows, row(fmt.Sprintf("%d  %s", i, EndsText(rail, r.Remote != "")), &rail.Carried, rail.Health))
	}
	lanes := htmldoc.Table{Title: "Lanes", Head: append([]string{"Lane"}, head...)}
	for i := range r.PerLane {
		l := &r.PerLane[i]
		lanes.Rows = append(lanes.Rows, row(fmt.Sprintf("%d on rail %d, %s", l.Lane, l.Rail, l.Role), &l.Carried, l.Health))
	}
	return htmldoc.Section{Title: "Rails and lanes", Tables: []htmldoc.Table{rails, lanes}}
}

// setupSection is what was measured.
func setupSection(r *measure.Report) htmldoc.Section {
	facts := []htmldoc.Fact{
		{Name: "Operation", Value: string(r.Op)},
		{Name: "Provider", Value: r.Provider},
		{Name: "Link", Value: r.Link},
		{Name: "NICs", Value: r.Device + " → " + r.Peer},
		{Name: "Memory", Value: MemoryText(r)},
		{Name: "Connection", Value: r.Connection},
		{Name: "Transport", Value: string(r.Transport)},
		{Name: "Rails", Value: fmt.Sprint(r.Rails)},
		{Name: "QPs", Value: fmt.Sprint(r.QPs)},
		{Name: "Scheme", Value: r.Scheme},
		{Name: "Policy", Value: r.Table.Policy},
		{Name: "TX depth", Value: fmt.Sprint(r.TxDepth)},
		{Name: "MTU", Value: fmt.Sprint(r.MTU)},
		{Name: "Both directions", Value: yesNo(r.Bidirectional)},
	}
	if r.Remote != "" {
		facts = append(facts, htmldoc.Fact{Name: "Other process", Value: r.Remote}, htmldoc.Fact{Name: "Packets", Value: PacketsText(r)})
	}
	for _, s := range r.Settings {
		facts = append(facts, htmldoc.Fact{Name: s.Name, Value: s.Value + " (" + s.From + ")"})
	}
	return htmldoc.Section{Title: "Set-up", Facts: facts}
}

func yesNo(b bool) string { return map[bool]string{true: "yes", false: "no"}[b] }

// environmentSection is where, when and how the test ran.
func environmentSection(r *measure.Run) htmldoc.Section {
	facts := []htmldoc.Fact{
		{Name: "Time", Value: r.Time.Format(time.RFC3339)},
		{Name: "Host", Value: r.Host},
		{Name: "Platform", Value: r.Platform},
		{Name: "Kernel", Value: r.Kernel},
		{Name: "CPUs", Value: fmt.Sprint(r.CPUs)},
		{Name: "Version", Value: r.Version},
		{Name: "Go", Value: r.Go},
		{Name: "Command", Value: "ibverbx " + strings.Join(r.Command, " ")},
	}
	return htmldoc.Section{Title: "Environment", Facts: facts}
}
