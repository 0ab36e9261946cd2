package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"

	"ibverbx/internal/perf"
)

// progressLine is one line on a terminal that is overwritten as work goes on. If the
// writer is not a terminal nothing is ever written.
type progressLine struct {
	w     io.Writer // nil if there is no terminal
	width int       // columns that are in use
}

func newProgressLine(w io.Writer) *progressLine {
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return &progressLine{w: f}
	}
	return &progressLine{}
}

// show says how far a test is.
func (l *progressLine) show(p perf.Progress) {
	if l.w == nil {
		return
	}
	const cells = 20
	bar := strings.Repeat("#", int(p.Done*cells))
	text := fmt.Sprintf(" %d/%d  %-8s [%-*s] %3.0f%%", p.Row+1, p.Rows, perf.FormatSize(p.Size), cells, bar, p.Done*100)
	// Blanks, not an escape sequence, so that any terminal does.
	fmt.Fprintf(l.w, "\r%-*s", l.width, text)
	l.width = max(l.width, len(text))
}

// clear leaves an empty line, for others to write on.
func (l *progressLine) clear() {
	if l.w == nil || l.width == 0 {
		return
	}
	fmt.Fprintf(l.w, "\r%*s\r", l.width, "")
	l.width = 0
}
