package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"ibverbx/internal/perf/measure"
	"ibverbx/sim"
)

// progressLine overwrites one terminal line as work progresses. It is silent if the writer is not a terminal.
type progressLine struct {
	w     io.Writer // nil without a terminal
	width int       // columns in use
	last  time.Time // time of the last write
}

func newProgressLine(w io.Writer) *progressLine {
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return &progressLine{w: f}
	}
	return &progressLine{}
}

// write overwrites the line, at most ten times a second.
func (l *progressLine) write(text string) {
	now := time.Now()
	if l.w == nil || now.Sub(l.last) < 100*time.Millisecond {
		return
	}
	l.last = now
	// Pad with blanks, because some terminals lack an escape sequence to clear the line.
	fmt.Fprintf(l.w, "\r%-*s", l.width, text)
	l.width = max(l.width, len(text))
}

// perfProgress formats test progress. The bar covers all sizes, so it never decreases.
type perfProgress struct {
	began time.Time     // first call
	row   int           // row of the last rate
	at    time.Duration // time of the last rate, within its row
	sent  int64         // messages by then
	rate  float64       // bytes per second
}

// rateSpan is the shortest interval for a rate.
const rateSpan = 500 * time.Millisecond

// text returns a line shorter than 80 columns.
func (g *perfProgress) text(p measure.Progress, now time.Time) string {
	if g.began.IsZero() {
		g.began = now
	}
	if p.Row != g.row {
		*g = perfProgress{began: g.began, row: p.Row}
	}
	if span := p.At - g.at; span >= rateSpan {
		g.rate = float64(p.Messages-g.sent) * float64(p.Size) / span.Seconds()
		g.at, g.sent = p.At, p.Messages
	}
	head := fmt.Sprintf(" %d/%d  %-8s ", p.Row+1, p.Rows, measure.FormatSize(p.Size))
	if p.Passive {
		return head + "the other side measures"
	}
	done := (float64(p.Row) + p.Done) / float64(p.Rows)
	text := head + bar(done, 10)
	switch {
	case p.Stalled > 0:
		text += fmt.Sprintf("  stalled for %v", p.Stalled.Truncate(time.Second))
	case g.rate > 0:
		text += fmt.Sprintf("  %.1f MiB/s", g.rate/mebibyte)
	}
	if p.Lost > 0 {
		text += fmt.Sprintf("  lanes: %d lost, %d back", p.Lost, p.Rebuilt)
	}
	if p.Stalled == 0 && done >= 0.01 && done < 1 {
		left := time.Duration(float64(now.Sub(g.began)) * (1 - done) / done)
		if whole := text + fmt.Sprintf("  %v left", max(left.Round(time.Second), time.Second)); len(whole) < columns {
			return whole
		}
	}
	return text
}

// bar draws a progress bar for done, which is 0 to 1.
func bar(done float64, cells int) string {
	return fmt.Sprintf("[%-*s] %3d%%", cells, strings.Repeat("#", int(done*float64(cells))), int(done*100))
}

// simProgress returns the progress of a run over many seeds, its speed and the time left.
func simProgress(s sim.Summary, took time.Duration) string {
	rate := float64(s.Seeds) / max(took.Seconds(), 1e-3)
	left := time.Duration(float64(s.Of-s.Seeds) / max(rate, 1e-3) * float64(time.Second))
	text := fmt.Sprintf(" seed %d/%d  %s  %.0f seeds/s  %s left", s.Seeds, s.Of, bar(float64(s.Seeds)/float64(s.Of), 20), rate, left.Round(time.Second))
	if n := s.Failed; n > 0 {
		text += fmt.Sprintf("  %d FAILED", n)
	}
	return text
}

// clear blanks the line for other output.
func (l *progressLine) clear() {
	if l.width > 0 {
		fmt.Fprintf(l.w, "\r%*s\r", l.width, "")
		l.width = 0
	}
}
