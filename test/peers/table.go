package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// table prints the rows as Markdown. A ratio that misses its bar is bold.
func table(w io.Writer, rows []row) error {
	_, err := fmt.Fprint(w, "| work | ours | peer | ratio | bar | aim |\n|---|--:|--:|--:|--:|--:|\n")
	for i := range rows {
		if err == nil {
			_, err = fmt.Fprintln(w, rows[i].line())
		}
	}
	return err
}

func (r *row) line() string {
	ours, peer, ratio := "", r.Peer, ""
	if r.Ours > 0 {
		ours = short(r.Ours) + " " + r.Unit
	}
	switch {
	case r.Problem != "":
		peer = r.Problem
	case r.Theirs > 0:
		peer += " " + short(r.Theirs)
		ratio = strconv.FormatFloat(r.Ratio, 'f', 2, 64)
	}
	if r.Bar > 0 && r.judged() > 0 && !r.meets(r.Bar) {
		ratio = "**" + ratio + "**"
		if r.theirs == nil {
			ours, ratio = "**"+ours+"**", ""
		}
	}
	return fmt.Sprintf("| %s | %s | %s | %s | %s | %s |", r.Work, ours, peer, ratio, r.limit(r.Bar), r.limit(r.Aim))
}

// limit prints a bar or an aim.
func (r *row) limit(v float64) string {
	switch {
	case v == 0:
		return ""
	case r.Lower:
		return "at most " + short(v)
	}
	return short(v)
}

// short prints three digits.
func short(v float64) string {
	switch {
	case v >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

// origin identifies a measurement: time, commit and machine.
type origin struct {
	Time    time.Time `json:"time"`
	Commit  string    `json:"commit"` // "+" behind it means that files have changed since
	CPU     string    `json:"cpu"`
	CPUs    int       `json:"cpus"`
	Go      string    `json:"go"`
	Command string    `json:"command"`
}

func newOrigin(ctx context.Context, args []string) origin {
	o := origin{Time: time.Now().UTC(), CPUs: runtime.NumCPU(), Go: runtime.Version(), Command: strings.Join(append([]string{"go run ./test/peers"}, args...), " ")}
	if out, err := output(ctx, exec.CommandContext(ctx, "git", "describe", "--always", "--dirty=+", "--exclude=*")); err == nil {
		o.Commit = strings.TrimSpace(string(out))
	}
	info, _ := os.ReadFile("/proc/cpuinfo") // absent elsewhere than on Linux
	if _, rest, ok := strings.Cut(string(info), "model name"); ok {
		line, _, _ := strings.Cut(rest, "\n")
		o.CPU = strings.TrimLeft(line, "\t :")
	}
	return o
}

func (o origin) String() string {
	return fmt.Sprintf("`%s`, commit %s, %d x %s, %s, %s", o.Command, o.Commit, o.CPUs, o.CPU, o.Go, o.Time.Format(time.DateOnly))
}

// save writes the results as JSON.
func save(file string, o origin, rows []row) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	b, err := json.MarshalIndent(struct {
		origin
		Rows []row `json:"rows"`
	}{o, rows}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(b, '\n'), 0o644)
}

// failures returns an error if rows could not be measured, except for missing programs.
func failures(rows []row) (err error) {
	for i := range rows {
		if r := &rows[i]; r.Problem != "" && len(r.Rounds) == 0 {
			err = errors.Join(err, fmt.Errorf("%s: %s", r.Work, r.Problem))
		}
	}
	return err
}
