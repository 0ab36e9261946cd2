package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"ibverbx/sim"
	"ibverbx/verbs"
)

// simProgress is the line of a run of many seeds: how far it is, how fast, and how long it
// will take. If the writer is not a terminal nothing is written.
type simProgress struct {
	line  *progressLine
	start time.Time
	last  time.Time
}

func newSimProgress(w io.Writer) *simProgress {
	return &simProgress{line: newProgressLine(w), start: time.Now()}
}

func (l *simProgress) elapsed() time.Duration { return time.Since(l.start) }

// show says how far the run is, ten times a second at the most.
func (l *simProgress) show(s sim.Summary) {
	now := time.Now()
	if l.line.w == nil || now.Sub(l.last) < 100*time.Millisecond {
		return
	}
	l.last = now
	text := simProgressText(s, now.Sub(l.start))
	fmt.Fprintf(l.line.w, "\r%-*s", l.line.width, text)
	l.line.width = max(l.line.width, len(text))
}

func (l *simProgress) clear() { l.line.clear() }

// simProgressText is what the line says.
func simProgressText(s sim.Summary, took time.Duration) string {
	const cells = 20
	done := float64(s.Seeds) / float64(s.Of)
	rate := float64(s.Seeds) / max(took.Seconds(), 1e-3)
	left := time.Duration(float64(s.Of-s.Seeds) / max(rate, 1e-3) * float64(time.Second))
	text := fmt.Sprintf(" seed %d/%d  [%-*s] %3.0f%%  %.0f seeds/s  %s left", s.Seeds, s.Of, cells,
		strings.Repeat("#", int(done*cells)), done*100, rate, left.Round(time.Second))
	if n := s.Failed; n > 0 {
		text += fmt.Sprintf("  %d FAILED", n)
	}
	return text
}

// ignoreBusy drops the complaint about memory that is still registered.
func ignoreBusy(err error) error {
	if errors.Is(err, verbs.ErrBusy) {
		return nil
	}
	return err
}
