package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"ibverbx/internal/perf"
	"ibverbx/sim"
)

// progressLine is one line on a terminal that is overwritten as work goes on. If the writer is not
// a terminal nothing is ever written.
type progressLine struct {
	w     io.Writer // nil if there is no terminal
	width int       // columns that are in use
	last  time.Time // when it was last written
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
	// Blanks overwrite the rest, because not every terminal knows an escape sequence for it.
	fmt.Fprintf(l.w, "\r%-*s", l.width, text)
	l.width = max(l.width, len(text))
}

// show says how far a test is.
func (l *progressLine) show(p perf.Progress) {
	l.write(fmt.Sprintf(" %d/%d  %-8s %s", p.Row+1, p.Rows, perf.FormatSize(p.Size), bar(p.Done)))
}

// bar draws how much is done, 0 to 1.
func bar(done float64) string {
	const cells = 20
	return fmt.Sprintf("[%-*s] %3.0f%%", cells, strings.Repeat("#", int(done*cells)), done*100)
}

// simProgress says how far a run of many seeds is, how fast, and how long it will take.
func simProgress(s sim.Summary, took time.Duration) string {
	rate := float64(s.Seeds) / max(took.Seconds(), 1e-3)
	left := time.Duration(float64(s.Of-s.Seeds) / max(rate, 1e-3) * float64(time.Second))
	text := fmt.Sprintf(" seed %d/%d  %s  %.0f seeds/s  %s left", s.Seeds, s.Of, bar(float64(s.Seeds)/float64(s.Of)), rate, left.Round(time.Second))
	if n := s.Failed; n > 0 {
		text += fmt.Sprintf("  %d FAILED", n)
	}
	return text
}

// clear leaves an empty line for other output.
func (l *progressLine) clear() {
	if l.width > 0 {
		fmt.Fprintf(l.w, "\r%*s\r", l.width, "")
		l.width = 0
	}
}
