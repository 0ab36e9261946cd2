package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"ibverbx/internal/perf"
	"ibverbx/internal/report"
)

// writable reports now, before a long test, if the file of --html cannot be written. tidy removes the file if writable
// has made it and nothing was written.
func (o *outputFlags) writable() (tidy func(), err error) {
	tidy = func() {}
	if o.html == "" {
		return tidy, nil
	}
	f, err := os.OpenFile(o.html, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err == nil {
		tidy = func() {
			if info, err := os.Stat(o.html); err == nil && info.Size() == 0 {
				_ = os.Remove(o.html)
			}
		}
	} else if errors.Is(err, fs.ErrExist) {
		f, err = os.OpenFile(o.html, os.O_WRONLY, 0o644)
	}
	if err != nil {
		return nil, fmt.Errorf("--html: %w", err)
	}
	return tidy, f.Close()
}

// save writes the file of --html.
func (o *outputFlags) save(r *perf.Report) error {
	if o.html == "" {
		return nil
	}
	var b bytes.Buffer
	if err := report.Write(&b, perfDocument(r)); err != nil {
		return err
	}
	if err := os.WriteFile(o.html, b.Bytes(), 0o644); err != nil {
		return fmt.Errorf("--html: %w", err)
	}
	return nil
}

// perfDocument is the report of a test.
func perfDocument(r *perf.Report) *report.Document {
	d := &report.Document{Title: "ibverbx perf: " + title(*r), Summary: "Verdict: " + r.Verdict}
	if r.Interrupted {
		d.Summary = "The test was interrupted. " + d.Summary
	}
	d.Sections = append(d.Sections, resultSection(r))
	if c := timelineChart(r); len(c.Lines) > 0 {
		d.Sections = append(d.Sections, report.Section{Title: "Rate over time", Charts: []report.Chart{c}})
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
func resultSection(r *perf.Report) report.Section {
	t := report.Table{Head: []string{"Size", "Messages", "Peak MiB/s", "Average MiB/s", "Messages/s", copyName(r) + " MiB/s", "Ratio"}}
	if r.Mode == perf.Latency {
		t.Head = []string{"Size", "Messages", "min µs", "median µs", "mean µs", "99 % µs", "99.9 % µs", "max µs"}
	}
	c := report.Chart{Title: "Average rate by size", X: "bytes", Y: "MiB/s", Log: true, Lines: []report.Line{{Name: string(r.Op)}, {Name: copyName(r)}}}
	if r.Mode == perf.Latency {
		c = report.Chart{Title: "Latency by size", X: "bytes", Y: "µs", Log: true, Lines: []report.Line{{Name: "median"}, {Name: "99 %"}}}
	}
	add := func(size int, values ...float64) {
		for i, v := range values {
			if v > 0 {
				c.Lines[i].Points = append(c.Lines[i].Points, report.Point{X: float64(size), Y: v})
			}
		}
	}
	for i := range r.Results {
		res := &r.Results[i]
		cells := []string{perf.FormatSize(res.Size), fmt.Sprint(res.Iterations)}
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
		t.Rows = append(t.Rows, report.Cells(cells...))
	}
	s := report.Section{Title: "Results", Tables: []report.Table{t}}
	if r.Checked {
		s.Text = "Every byte was compared."
	}
	if len(r.Results) > 1 {
		s.Charts = []report.Chart{c}
	}
	return s
}

func mib(rate float64) string { return fmt.Sprintf("%.1f", rate/mebibyte) }

// timelineChart has a curve for each rail, one size after the other. Sizes and what happened to rails are marked.
func timelineChart(r *perf.Report) report.Chart {
	c := report.Chart{Title: "Rate of each rail", X: "seconds", Y: "MiB/s"}
	for i := range r.PerRail {
		c.Lines = append(c.Lines, report.Line{Name: fmt.Sprintf("rail %d, %s", i, endsText(&r.PerRail[i], false))})
	}
	put := func(from float64, spans []perf.Span) (end float64) {
		for i := range spans {
			s := &spans[i]
			for rail, rate := range s.PerRail[:min(len(s.PerRail), len(c.Lines))] {
				l := &c.Lines[rail]
				l.Points = append(l.Points, report.Point{X: from + s.From, Y: rate / mebibyte}, report.Point{X: from + s.To, Y: rate / mebibyte})
			}
			end = from + s.To
		}
		return end
	}
	if f := r.Failover; f != nil {
		put(0, f.Timeline)
		for _, e := range folded(f.Events) {
			if e.End == "both" || e.End == "initiator" && e.Event == "recovered" {
				c.Marks = append(c.Marks, report.Mark{X: e.At, Text: eventText(r, &e), Look: look(e.Event == "port down", report.Bad)})
			}
		}
		return c
	}
	at := 0.0
	for i := range r.Results {
		if len(r.Results) > 1 {
			c.Marks = append(c.Marks, report.Mark{X: at, Text: perf.FormatSize(r.Results[i].Size)})
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
func look(applies bool, l report.Look) report.Look {
	if applies {
		return l
	}
	return report.Plain
}

// histogramPart is the part of the messages that a histogram shows. A few late ones would make all others narrow.
const histogramPart = 0.999

// histogramSection has the distribution of the times of each size.
func histogramSection(r *perf.Report) report.Section {
	s := report.Section{Title: "Latency"}
	cdf := report.Chart{Title: "Messages that took no longer", X: "µs", Y: "%", Log: true, Top: 100}
	for i := range r.Results {
		res := &r.Results[i]
		if len(res.Histogram) == 0 {
			continue
		}
		bars := report.Chart{Title: "Messages of " + perf.FormatSize(res.Size) + " by time, without the last 0.1 %", X: "µs", Y: "messages", Log: true}
		line := report.Line{Name: perf.FormatSize(res.Size)}
		sum, total := int64(0), int64(0)
		for _, b := range res.Histogram {
			total += b.Count
		}
		for _, b := range res.Histogram {
			sum += b.Count
			from := max(b.From, 0.001)
			if shown := float64(sum-b.Count) / float64(total); shown < histogramPart {
				bars.Bars = append(bars.Bars, report.Bar{From: from, To: max(b.To, from), Y: float64(b.Count)})
			}
			line.Points = append(line.Points, report.Point{X: max(b.To, from), Y: 100 * float64(sum) / float64(total)})
		}
		if l := res.LatencyResult; l != nil {
			bars.Marks = []report.Mark{{X: l.Typical, Text: fmt.Sprintf("median %.2f µs", l.Typical)}, {X: l.P99, Text: fmt.Sprintf("99 %% %.2f µs", l.P99)}}
		}
		cdf.Lines = append(cdf.Lines, line)
		s.Charts = append(s.Charts, bars)
	}
	if len(cdf.Lines) > 0 {
		s.Charts = append([]report.Chart{cdf}, s.Charts...)
	}
	return s
}

// failoverSection has the phases and the events of a lost rail.
func failoverSection(r *perf.Report) report.Section {
	f := r.Failover
	s := report.Section{Title: "The loss of rail " + fmt.Sprint(f.KillRail)}
	s.Text = fmt.Sprintf("%s went out of service, and other lanes took over %s.", plural(f.LanesDown, "lane"), plural(int(f.Replayed), "request"))
	phases := report.Table{Head: []string{"Phase", "from s", "to s", "MiB/s"}}
	for i, p := range f.Phases {
		name := [...]string{"before", "during", "after"}[i]
		phases.Rows = append(phases.Rows, report.Cells(name, fmt.Sprintf("%.3f", p.From), fmt.Sprintf("%.3f", p.To), mib(p.BytesPerSecond)))
	}
	events := report.Table{Title: "Events", Head: []string{"Event", "s", "end"}}
	for _, e := range folded(f.Events) {
		events.Rows = append(events.Rows, report.Cells(eventText(r, &e), fmt.Sprintf("%.3f", e.At), e.End))
	}
	s.Tables = []report.Table{phases, events}
	return s
}

// carriedSection has what each rail and lane carried, and how healthy it was.
func carriedSection(r *perf.Report) report.Section {
	head := []string{"MiB", "Share", "Fragments", "Doorbells", "Health"}
	row := func(name string, c *perf.Carried, h *perf.Health) []report.Cell {
		cells := report.Cells(name, fmt.Sprintf("%.1f", float64(c.Bytes)/mebibyte), fmt.Sprintf("%.1f %%", 100*c.Share),
			fmt.Sprint(c.Fragments), fmt.Sprint(c.Doorbells), "no counters")
		if h != nil {
			text := healthText(h)
			cells[5] = report.Cell{Text: text, Look: look(text != "", report.Bad)}
			if text == "" {
				cells[5] = report.Cell{Text: "nothing lost", Look: report.Good}
			}
		}
		return cells
	}
	rails := report.Table{Head: append([]string{"Rail"}, head...)}
	for i := range r.PerRail {
		rail := &r.PerRail[i]
		rails.Rows = append(rails.Rows, row(fmt.Sprintf("%d  %s", i, endsText(rail, r.Remote != "")), &rail.Carried, rail.Health))
	}
	lanes := report.Table{Title: "Lanes", Head: append([]string{"Lane"}, head...)}
	for i := range r.PerLane {
		l := &r.PerLane[i]
		lanes.Rows = append(lanes.Rows, row(fmt.Sprintf("%d on rail %d, %s", l.Lane, l.Rail, l.Role), &l.Carried, l.Health))
	}
	return report.Section{Title: "Rails and lanes", Tables: []report.Table{rails, lanes}}
}

// setupSection is what was measured.
func setupSection(r *perf.Report) report.Section {
	facts := []report.Fact{
		{Name: "Operation", Value: string(r.Op)},
		{Name: "Provider", Value: r.Provider},
		{Name: "Link", Value: r.Link},
		{Name: "NICs", Value: r.Device + " → " + r.Peer},
		{Name: "Memory", Value: memoryText(r)},
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
		facts = append(facts, report.Fact{Name: "Other process", Value: r.Remote}, report.Fact{Name: "Packets", Value: packetsText(r)})
	}
	for _, s := range r.Settings {
		facts = append(facts, report.Fact{Name: s.Name, Value: s.Value + " (" + s.From + ")"})
	}
	return report.Section{Title: "Set-up", Facts: facts}
}

func yesNo(b bool) string { return map[bool]string{true: "yes", false: "no"}[b] }

// environmentSection is where, when and how the test ran.
func environmentSection(r *perf.Run) report.Section {
	facts := []report.Fact{
		{Name: "Time", Value: r.Time.Format(time.RFC3339)},
		{Name: "Host", Value: r.Host},
		{Name: "Platform", Value: r.Platform},
		{Name: "Kernel", Value: r.Kernel},
		{Name: "CPUs", Value: fmt.Sprint(r.CPUs)},
		{Name: "Version", Value: r.Version},
		{Name: "Go", Value: r.Go},
		{Name: "Command", Value: "ibverbx " + strings.Join(r.Command, " ")},
	}
	return report.Section{Title: "Environment", Facts: facts}
}
