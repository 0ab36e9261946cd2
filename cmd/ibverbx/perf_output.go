package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"ibverbx/internal/htmldoc"
	"ibverbx/internal/perf/measure"
	"ibverbx/internal/perf/report"
)

// outputFlags select the form of the results.
type outputFlags struct {
	json     bool
	gbits    bool
	verbose  bool
	interval time.Duration
	web      bool
	html     string
}

func (o *outputFlags) define(fl *pflag.FlagSet) {
	fl.BoolVarP(&o.verbose, "verbose", "v", false, "also print all parameters as perftest does, a line per lane, and with --transport uc or ud a line per path")
	fl.Func("interval", "print the rate of each rail at this `interval`, such as 1s", seconds(&o.interval))
	fl.BoolVar(&o.json, "json", false, "print one JSON object, in bytes and seconds")
	fl.BoolVar(&o.gbits, "report-gbits", false, "print rates in Gb/sec instead of MiB/sec")
}

// defineFiles adds the flags of the side that starts the test.
func (o *outputFlags) defineFiles(fl *pflag.FlagSet) {
	fl.BoolVar(&o.web, "web", false, "show the running test as a web page on this host")
	fl.StringVar(&o.html, "html", "", "also write a self-contained report with charts to `file`")
}

// The maximum number and the minimum length of the spans of the timeline in --json and --html, unless --interval
// is given.
const (
	jsonSpans   = 100
	jsonSpanMin = 100 * time.Millisecond
)

// span returns the length of a span of the timeline.
func (o *outputFlags) span(cfg *measure.Config) time.Duration {
	switch {
	case o.interval > 0:
		return o.interval
	case o.web && cfg.Duration > webLong:
		return webSpanLong
	case o.web:
		return webSpan
	case o.json || o.html != "":
		return max(cfg.Duration/jsonSpans, jsonSpanMin)
	}
	return 0
}

// writable detects an unwritable --html file before a long test. tidy removes the file if writable created it and it is still empty.
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
func (o *outputFlags) save(r *measure.Report) error {
	if o.html == "" {
		return nil
	}
	var b bytes.Buffer
	if err := htmldoc.Write(&b, report.Document(r, report.Units(o.gbits))); err != nil {
		return err
	}
	if err := os.WriteFile(o.html, b.Bytes(), 0o644); err != nil {
		return fmt.Errorf("--html: %w", err)
	}
	return nil
}

// runOf describes the host, the time and the build of this run.
func runOf(args []string) measure.Run {
	b := buildVersion()
	r := measure.Run{Time: time.Now().UTC(), Platform: b.Platform, CPUs: runtime.GOMAXPROCS(0), Version: b.Version, Go: b.Go, Command: args}
	if b.Revision != "" {
		r.Version += " " + b.Revision
	}
	r.Host, _ = os.Hostname() // empty if unknown
	if kernel, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		r.Kernel = strings.TrimSpace(string(kernel))
	}
	return r
}
