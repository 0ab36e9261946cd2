package monitor

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

const mebibyte = 1 << 20

// Screen draws a Record on a terminal.
type Screen struct {
	// Width is the number of columns, at least 40.
	Width int
	// Height is the number of rows.
	Height int
	// Paint styles text (ECMA-48). Nil disables styles.
	Paint func(style, text string) string
}

// Text styles.
const (
	bold  = "1"
	faint = "2"
	red   = "31"
	green = "32"
)

// Lines draws v in at most Height-1 lines of at most Width columns, which leaves a line for the
// cursor.
func (s *Screen) Lines(v *View) []string {
	var last Sample
	if n := len(v.Samples); n > 0 {
		last = v.Samples[n-1]
	}
	clock := fmt.Sprintf("%.1f s", last.At)
	if v.Setup.Seconds > 0 {
		clock += fmt.Sprintf(" of %.0f s", v.Setup.Seconds)
	}
	lines := []string{s.justify(bold, v.Setup.Title, clock), ""}
	top := 0.0
	for i := range v.Samples {
		for _, rail := range v.Samples[i].Rails {
			top = max(top, rail.Rate)
		}
	}
	// Lines besides the charts: the title, a blank, the axis, the total, a blank and eight events.
	const others = 13
	rails := len(v.Setup.Rails)
	rows := min(max((s.Height-1-others)/max(rails, 1)-1, 1), 6)
	for i := range v.Setup.Rails {
		lines = append(lines, s.rail(v, &last, i))
		lines = append(lines, s.chart(v, i, rows, top)...)
	}
	lines = append(lines, s.axis(v), s.totals(v, &last), "")
	lines = append(lines, s.events(v, s.Height-1-len(lines))...)
	return lines[:min(len(lines), max(s.Height-1, 1))]
}

// rail returns the line above a rail's chart.
func (s *Screen) rail(v *View, last *Sample, i int) string {
	r := &v.Setup.Rails[i]
	name := fmt.Sprintf("rail %d  %s -> %s  ", i, r.Device, r.Peer)
	if i >= len(last.Rails) {
		return clip(strings.TrimRight(name, " "), s.Width)
	}
	sample := &last.Rails[i]
	style, state := green, "up"
	switch {
	case sample.Up == 0:
		style, state = red, "down"
	case sample.Up < sample.Lanes:
		style, state = red, fmt.Sprintf("%d of %d lanes", sample.Up, sample.Lanes)
	}
	for _, f := range sample.Faults {
		style = red
		state += ", " + f
	}
	if sample.Retransmits > 0 {
		state += fmt.Sprintf(", %d retransmits", sample.Retransmits)
	}
	rate := rateText(sample.Rate)
	room := s.Width - utf8.RuneCountInString(name) - utf8.RuneCountInString(rate) - 1
	state = clip(state, max(room, 0))
	gap := strings.Repeat(" ", max(room+1-utf8.RuneCountInString(state), 0))
	return name + s.paint(style, state) + gap + s.paint(bold, rate)
}

// sparks lists blocks by height.
var sparks = [...]rune{' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'}

// chart draws a rail's rate over time, rows lines high. A rate of top fills the chart.
func (s *Screen) chart(v *View, rail, rows int, top float64) []string {
	lines := Blocks(v.columns(rail, s.Width), rows, top)
	for row := range lines {
		lines[row] = strings.TrimRight(lines[row], " ")
	}
	return lines
}

// Blocks draws rates as columns of blocks, rows lines high. A rate of top fills a column. Only a
// rate of zero is blank.
func Blocks(rates []float64, rows int, top float64) []string {
	lines := make([]string, rows)
	for row := range lines {
		var b strings.Builder
		for _, rate := range rates {
			eighths := 0
			if rate > 0 && top > 0 {
				eighths = max(int(rate/top*float64(8*rows)+0.5), 1)
			}
			b.WriteRune(sparks[min(max(eighths-8*(rows-1-row), 0), 8)])
		}
		lines[row] = b.String()
	}
	return lines
}

// columns folds the rates of a rail into at most width columns: the whole duration if known,
// otherwise the last samples.
func (v *View) columns(rail, width int) []float64 {
	rateOf := func(s *Sample) float64 {
		if rail < len(s.Rails) {
			return s.Rails[rail].Rate
		}
		return 0
	}
	var list []float64
	if v.Setup.Seconds == 0 {
		for i := max(len(v.Samples)-width, 0); i < len(v.Samples); i++ {
			list = append(list, rateOf(&v.Samples[i]))
		}
		return list
	}
	if len(v.Samples) == 0 {
		return nil
	}
	next, rate := 0, rateOf(&v.Samples[0])
	for column := range width {
		end := v.Setup.Seconds * float64(column+1) / float64(width)
		sum, n := 0.0, 0
		for ; next < len(v.Samples) && v.Samples[next].At <= end; next++ {
			sum += rateOf(&v.Samples[next])
			n++
		}
		if n == 0 && next == len(v.Samples) {
			break
		}
		if n > 0 {
			rate = sum / float64(n)
		}
		list = append(list, rate)
	}
	return list
}

// axis returns the time axis below the charts.
func (s *Screen) axis(v *View) string {
	if v.Setup.Seconds == 0 {
		return ""
	}
	line := []rune(strings.Repeat("-", s.Width))
	for sec := 0; float64(sec) <= v.Setup.Seconds; sec++ {
		text := fmt.Sprintf("%d s", sec)
		at := int(float64(sec) / v.Setup.Seconds * float64(s.Width))
		if at+len(text) <= s.Width {
			copy(line[at:], []rune(text))
		}
	}
	return s.paint(faint, string(line))
}

// totals returns the line below the axis.
func (s *Screen) totals(v *View, last *Sample) string {
	left := fmt.Sprintf("%d messages, %.0f MiB", last.Messages, float64(last.Bytes)/mebibyte)
	if v.Setup.Checked {
		left += ", every byte compared"
	}
	if last.P50 > 0 {
		left += fmt.Sprintf(", %.1f ms each", last.P50/1e3)
	}
	return s.justify("", left, "total "+rateText(last.Rate))
}

// events returns the last events, at most the given number.
func (s *Screen) events(v *View, most int) (lines []string) {
	list := v.Events[max(len(v.Events)-max(most, 0), 0):]
	for i := range list {
		style := green
		if list[i].Bad {
			style = red
		}
		lines = append(lines, s.paint(style, clip(list[i].String(), s.Width)))
	}
	return lines
}

// String formats the event as a line.
func (e *Event) String() string { return fmt.Sprintf("%7.2f s  %s", e.At, e.Text) }

// justify aligns one text to the left and one to the right.
func (s *Screen) justify(style, left, right string) string {
	room := s.Width - utf8.RuneCountInString(right) - 1
	left = clip(left, max(room, 0))
	return s.paint(style, left) + strings.Repeat(" ", max(room+1-utf8.RuneCountInString(left), 0)) + right
}

func (s *Screen) paint(style, text string) string {
	if s.Paint == nil || style == "" {
		return text
	}
	return s.Paint(style, text)
}

// clip truncates a text to width columns.
func clip(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	return string([]rune(text)[:width])
}

func rateText(rate float64) string { return fmt.Sprintf("%8.1f MiB/s", rate/mebibyte) }

// Line formats a sample as one line, for output other than a terminal.
func (v *View) Line(s *Sample) string {
	parts := make([]string, 0, len(s.Rails))
	for i := range s.Rails {
		parts = append(parts, fmt.Sprintf("rail %d %s", i, rateText(s.Rails[i].Rate)))
	}
	return fmt.Sprintf("%7.2f s  %s  total %s", s.At, strings.Join(parts, "  "), rateText(s.Rate))
}

// Mean returns the mean rate of each rail and of all messages between two times. Samples that begin
// before from are omitted.
func (v *View) Mean(from, to float64) (rails []float64, total float64) {
	rails = make([]float64, len(v.Setup.Rails))
	seconds := 0.0
	for i := 1; i < len(v.Samples); i++ {
		s, start := &v.Samples[i], v.Samples[i-1].At
		if start < from || s.At > to {
			continue
		}
		seconds += s.At - start
		total += s.Rate * (s.At - start)
		for k := range min(len(rails), len(s.Rails)) {
			rails[k] += s.Rails[k].Rate * (s.At - start)
		}
	}
	if seconds == 0 {
		return rails, 0
	}
	for k := range rails {
		rails[k] /= seconds
	}
	return rails, total / seconds
}
