package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"ibverbx/files"
	"ibverbx/internal/printable"
	"ibverbx/node"
	"ibverbx/transfer"
)

// How often progress is shown.
const (
	everyOnTerminal = 500 * time.Millisecond
	everyElsewhere  = 10 * time.Second
	everyJSON       = time.Second
)

// fileShow shows a transfer: on a terminal in a line that it overwrites, elsewhere in a line per interval, and with --json in objects.
type fileShow struct {
	f    *fileFlags
	line *progressLine
	out  io.Writer
	err  io.Writer
	peer *files.Peer
	// began is the start of the transfer. lost is the time at which the peer was found lost, zero while it is connected.
	began, lost time.Time
	// result is valid after run.
	result fileReport
}

func newFileShow(s streams, f *fileFlags, p *files.Peer) *fileShow {
	return &fileShow{f: f, line: newProgressLine(s.err), out: s.out, err: s.err, peer: p, began: time.Now()}
}

// fileReport is a line of --json.
type fileReport struct {
	Type    string  `json:"type"` // progress or result
	Phase   string  `json:"phase"`
	Name    string  `json:"name"`
	Bytes   int64   `json:"bytes"`
	Total   int64   `json:"total"`
	Kept    int64   `json:"kept"` // part of Bytes that existed before the transfer
	Rate    float64 `json:"bytes_per_second"`
	Left    float64 `json:"seconds_left,omitempty"`
	Seconds float64 `json:"seconds"`
	Chunks  int64   `json:"chunks"`
	Bad     int64   `json:"bad"`
	State   string  `json:"peer"`
	carried
	Error string `json:"error,omitempty"`
	// Sent, Unchanged, Deleted and Failed count files.
	Sent      int64 `json:"files_sent"`
	Unchanged int64 `json:"files_unchanged"`
	Deleted   int64 `json:"files_deleted"`
	Failed    int64 `json:"files_failed"`
	// Listed counts the files listed so far, and Listing is set until the listing is complete.
	Listed  int64 `json:"files_listed,omitempty"`
	Listing bool  `json:"listing,omitempty"`
	// Skipped counts special files; SkippedNames holds the first ones.
	Skipped      int64    `json:"skipped,omitempty"`
	SkippedNames []string `json:"skipped_names,omitempty"`
	// perRail is the traffic of the session in both directions.
	perRail []transfer.RailStatus
}

// plus returns the sum of two results. It has the name and the state of the last one.
func (r fileReport) plus(next fileReport) fileReport {
	sum := next
	for _, v := range []struct{ to, with *int64 }{
		{&sum.Bytes, &r.Bytes},
		{&sum.Total, &r.Total},
		{&sum.Kept, &r.Kept},
		{&sum.Chunks, &r.Chunks},
		{&sum.Bad, &r.Bad},
		{&sum.Sent, &r.Sent},
		{&sum.Unchanged, &r.Unchanged},
		{&sum.Deleted, &r.Deleted},
		{&sum.Failed, &r.Failed},
		{&sum.Listed, &r.Listed},
		{&sum.Skipped, &r.Skipped},
	} {
		*v.to += *v.with
	}
	sum.Seconds += r.Seconds
	sum.SkippedNames = append(r.SkippedNames, next.SkippedNames...)
	sum.Rate = float64(sum.Bytes-sum.Kept) / max(sum.Seconds, 1e-9)
	return sum
}

// run shows a transfer until it completes, cancels it when ctx is done, and returns its error.
func (w *fileShow) run(ctx context.Context, t *files.Transfer) error {
	every := everyElsewhere
	switch {
	case w.f.json:
		every = everyJSON
	case w.line.w != nil:
		every = everyOnTerminal
	}
	var last files.Status
	for last = range t.Progress(ctx, every) {
		if last.Phase != transfer.Done {
			w.step(last)
		}
	}
	w.line.clear()
	if ctx.Err() != nil {
		t.Cancel()
	}
	err := t.Wait(context.Background())
	if ctx.Err() != nil && err != nil {
		err = fmt.Errorf("%w: %s were transferred and are kept; run the command again to resume", stopped(ctx, err), formatBytes(t.Status().Bytes))
	} else if err != nil && fileStatus(err) == exitPeer {
		err = fmt.Errorf("%w; %s were transferred and are kept; run the command again to resume", err, formatBytes(t.Status().Bytes))
	}
	w.end(t.Status())
	return err
}

// step shows the progress of a transfer.
func (w *fileShow) step(s files.Status) {
	if w.peer.Node().State() != node.StateLost {
		w.lost = time.Time{}
	} else if w.lost.IsZero() {
		w.lost = time.Now()
	}
	switch {
	case w.f.json:
		_ = json.NewEncoder(w.out).Encode(w.report(lineProgress, s)) // the result reports the error
	case w.f.quiet:
	case w.line.w != nil:
		w.line.write(w.text(s))
	default:
		fmt.Fprintln(w.err, w.text(s))
	}
}

// text is a line of at most 80 columns.
func (w *fileShow) text(s files.Status) string {
	done := 0.0
	if s.Total > 0 { // the total of a changing file may shrink
		done = min(max(float64(s.Bytes)/float64(s.Total), 0), 1)
	}
	name := shorten(printable.Text(path.Base(s.Name)), 24)
	switch {
	case !w.lost.IsZero():
		return fmt.Sprintf("%s  ... 0 B/s  peer lost %v ago, trying again (%s safe)", name, time.Since(w.lost).Round(time.Second), formatBytes(s.Bytes))
	case s.Phase == transfer.Checking:
		return fmt.Sprintf("checking  %s  %3.0f%%  %s  %s", name, done*100, formatOf(s.Bytes, s.Total), rate(s))
	}
	const cells = 10
	text := fmt.Sprintf("%s  [%-*s] %3.0f%%  %s  ", name, cells, strings.Repeat("#", int(done*cells)), done*100, formatOf(s.Bytes, s.Total))
	if whole := text + progressFiles(s) + rate(s); len(whole) <= columns {
		return whole
	}
	s.Rails = nil
	if whole := text + progressFiles(s) + rate(s); len(whole) <= columns {
		return whole
	}
	return text + rate(s)
}

// progressFiles formats the file counts of a directory: completed files, if known, and files listed so far.
func progressFiles(s files.Status) string {
	if s.Listed == 0 {
		return ""
	}
	text := thousands(s.Listed)
	if s.Listing {
		text += "+"
	}
	if done := s.Sent + s.Unchanged + s.Failed; done > 0 {
		text = thousands(done) + "/" + text
	}
	return text + " files  "
}

// rate formats the rate of a transfer and of each local NIC, and the time left.
func rate(s files.Status) string {
	text := formatBytes(int64(s.Rate)) + "/s"
	unit, size := scale(int64(s.Rate))
	for i, r := range s.Rails {
		if r.Rate > 0 && unit != "B" {
			text += fmt.Sprintf("%s%s %.1f", []string{"  ", " "}[min(i, 1)], r.Name, r.Rate/size)
		}
	}
	if s.Left > 0 {
		text += fmt.Sprintf("  %v left", max(s.Left.Round(time.Second), time.Second))
	}
	return text
}

// end records the result.
func (w *fileShow) end(s files.Status) {
	s.Rate = float64(s.Bytes-s.BytesReused) / max(time.Since(w.began).Seconds(), 1e-9)
	w.result = w.report(lineResult, s)
	if !w.f.json && !w.f.quiet {
		w.warn(s)
	}
}

// summary prints the result of all transfers.
func (f *transferFlags) summary(s streams) error {
	r := &f.result
	if f.cfg.DryRun {
		_, err := fmt.Fprintf(s.out, "dry run: %s\n", countFiles(r))
		return err
	}
	text := fmt.Sprintf("%s in %.1f s (%s/s), %s were there already, %s chunks verified, %d bad\n",
		formatBytes(r.Bytes), r.Seconds, formatBytes(int64(r.Rate)), formatBytes(r.Kept), thousands(r.Chunks), r.Bad)
	for i, rail := range r.perRail {
		if len(r.perRail) > 1 {
			text += fmt.Sprintf("%s%s %s", []string{"rails: ", ", "}[min(i, 1)], rail.Name, formatBytes(rail.Bytes))
		}
	}
	if len(r.perRail) > 1 {
		text += "\n"
	}
	if r.Sent+r.Unchanged+r.Deleted+r.Failed > 1 {
		text += countFiles(r) + "\n"
	}
	_, err := fmt.Fprint(s.out, text)
	return err
}

// countFiles formats the numbers of files.
func countFiles(r *fileReport) string {
	return fmt.Sprintf("%s files sent, %s unchanged, %s deleted, %s failed", thousands(r.Sent), thousands(r.Unchanged), thousands(r.Deleted), thousands(r.Failed))
}

// warn prints the number of skipped special files and the first names.
func (w *fileShow) warn(s files.Status) {
	if s.Skipped == 0 {
		return
	}
	names := printable.Text(strings.Join(s.SkippedNames, ", "))
	if more := s.Skipped - int64(len(s.SkippedNames)); more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	fmt.Fprintf(w.err, "ibverbx: warning: skipped %d special files (FIFOs, sockets or devices): %s\n", s.Skipped, names)
}

// report returns a line of --json.
func (w *fileShow) report(kind string, s files.Status) fileReport {
	return fileReport{
		Type: kind, Phase: s.Phase.String(), Name: s.Name, Bytes: s.Bytes, Total: s.Total, Kept: s.BytesReused, Rate: s.Rate, Left: s.Left.Seconds(),
		Seconds: time.Since(w.began).Seconds(), Chunks: s.Chunks, Bad: s.ChunksRetried, State: w.peer.Node().State().String(),
		Sent: s.Sent, Unchanged: s.Unchanged, Deleted: s.Deleted, Failed: s.Failed, Listed: s.Listed, Listing: s.Listing, Skipped: s.Skipped, SkippedNames: s.SkippedNames,
		perRail: s.Rails,
	}
}

// shorten cuts the front of a name that has more than n characters.
func shorten(name string, n int) string {
	if r := []rune(name); len(r) > n {
		return "..." + string(r[len(r)-n+3:])
	}
	return name
}

var byteUnits = [...]string{"B", "kB", "MB", "GB", "TB", "PB", "EB"}

// scale returns the unit for a number of bytes, and how many bytes it has.
func scale(n int64) (unit string, size float64) {
	size = 1
	i := 0
	for ; float64(n) >= 999.95*size && i < len(byteUnits)-1; i++ {
		size *= 1000
	}
	return byteUnits[i], size
}

// formatBytes returns a number of bytes with its unit, such as 30.0 GB.
func formatBytes(n int64) string {
	unit, size := scale(n)
	if size == 1 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", float64(n)/size, unit)
}

// formatOf returns how much of how much, such as 17.1/30.0 GB.
func formatOf(n, total int64) string {
	unit, size := scale(total)
	if size == 1 {
		return fmt.Sprintf("%d/%d B", n, total)
	}
	return fmt.Sprintf("%.1f/%.1f %s", float64(n)/size, float64(total)/size, unit)
}

// thousands writes a number with commas.
func thousands(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
