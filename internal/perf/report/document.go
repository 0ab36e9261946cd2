// Package report formats the results of package measure: [Verdict] judges the rails, [Document] builds the HTML report, and tables.go and
// words.go contain the tables and texts that it shares with the terminal output of "ibverbx perf".
package report

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"ibverbx/internal/htmldoc"
	"ibverbx/internal/perf/measure"
)

// Document returns the HTML report of a test.
func Document(r *measure.Report, u Unit) *htmldoc.Document {
	d := &htmldoc.Document{Title: "ibverbx perf: " + Title(*r), Summary: "Verdict: " + r.Verdict}
	if r.Interrupted {
		d.Summary = "The test was interrupted. " + d.Summary
	}
	d.Sections = append(d.Sections, resultSection(r, u))
	if c := timelineChart(r); len(c.Lines) > 0 {
		d.Sections = append(d.Sections, htmldoc.Section{Title: "Rate over time", Charts: []htmldoc.Chart{c}})
	}
	if s := histogramSection(r); len(s.Charts) > 0 {
		d.Sections = append(d.Sections, s)
	}
	if r.Failover != nil {
		d.Sections = append(d.Sections, failoverSection(r, u))
	}
	d.Sections = append(d.Sections, carriedSection(r), setupSection(r), environmentSection(&r.Run))
	return d
}

// resultSection has the results and, for several sizes, a chart.
func resultSection(r *measure.Report, u Unit) htmldoc.Section {
	s := htmldoc.Section{Title: "Results", Tables: []htmldoc.Table{*Results(r, u)}}
	if r.Checked {
		s.Text = "Every byte was compared."
	}
	if len(r.Results) < 2 {
		return s
	}
	c := htmldoc.Chart{Title: "Average rate by size", X: "bytes", Y: u.Name, Log: true, Lines: []htmldoc.Line{{Name: string(r.Op)}, {Name: CopyName(r)}}}
	if r.Mode == measure.Latency {
		c = htmldoc.Chart{Title: "Latency by size", X: "bytes", Y: "µs", Log: true, Lines: []htmldoc.Line{{Name: "median"}, {Name: "99 %"}}}
	}
	for i := range r.Results {
		res := &r.Results[i]
		var values []float64
		if l := res.LatencyResult; l != nil {
			values = []float64{l.Typical, l.P99}
		} else if b := res.BandwidthResult; b != nil {
			values = []float64{b.BytesPerSecond * u.Scale, b.CopyBytesPerSecond * u.Scale}
		}
		for k, v := range values {
			if v > 0 {
				c.Lines[k].Points = append(c.Lines[k].Points, htmldoc.Point{X: float64(res.Size), Y: v})
			}
		}
	}
	s.Charts = []htmldoc.Chart{c}
	return s
}

// timelineChart has a curve per rail, one size after the other, with marks for sizes and rail
// events.
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
				m := htmldoc.Mark{X: e.At, Text: EventText(r, &e)}
				if e.Event == "port down" {
					m.Style = htmldoc.Bad
				}
				c.Marks = append(c.Marks, m)
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

// histogramPart is the fraction of messages in a histogram. A few outliers would squeeze the rest.
const histogramPart = 0.999

// histogramSection has the time distribution of each size.
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

// failoverSection has the phases and the events of an outage.
func failoverSection(r *measure.Report, u Unit) htmldoc.Section {
	f := r.Failover
	return htmldoc.Section{
		Title:  "The loss of rail " + fmt.Sprint(f.KillRail),
		Text:   fmt.Sprintf("%s went out of service, and other lanes took over %s.", Plural(f.LanesDown, "lane"), Plural(int(f.Replayed), "request")),
		Tables: []htmldoc.Table{*Phases(r, u), *EventTable(r)},
	}
}

// carriedSection has the traffic and the health of each rail, lane and path.
func carriedSection(r *measure.Report) htmldoc.Section {
	s := htmldoc.Section{Title: "Rails and lanes", Tables: []htmldoc.Table{*Rails(r), *Lanes(r.PerLane)}}
	if paths := Paths(r.PerLane); len(paths.Rows) > 0 {
		s.Tables = append(s.Tables, *paths)
	}
	return s
}

// setupSection lists the test parameters.
func setupSection(r *measure.Report) htmldoc.Section {
	return htmldoc.Section{Title: "Set-up", Facts: slices.Concat(Parameters(r)...)}
}

// environmentSection lists the host, the time and the command of the test.
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
