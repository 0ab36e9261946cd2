package main

import (
	"encoding/csv"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"ibverbx/internal/perf"
)

// outputFlags say how results are printed.
type outputFlags struct {
	json     bool
	csv      bool
	gbits    bool
	verbose  bool
	interval time.Duration
	web      bool
	html     string
}

func (o *outputFlags) define(fl *pflag.FlagSet) {
	fl.BoolVarP(&o.verbose, "verbose", "v", false, "also print all parameters as perftest does, a line per lane, and with --transport uc a line per path")
	fl.Func("interval", "print the rate of each rail at this `interval`, such as 1s", seconds(&o.interval))
	fl.BoolVar(&o.json, "json", false, "print one JSON object, in bytes and seconds")
	fl.BoolVar(&o.csv, "csv", false, "print a line of comma-separated values for each size, after one with their names, as in --json")
	fl.BoolVar(&o.gbits, "report_gbits", false, "print rates in Gb/sec instead of MiB/sec")
}

// defineFiles adds the flags of the side that starts the test.
func (o *outputFlags) defineFiles(fl *pflag.FlagSet) {
	fl.BoolVar(&o.web, "web", false, "show the running test as a web page on this host")
	fl.StringVar(&o.html, "html", "", "also write a self-contained report with charts to `file`")
}

// machine reports whether programs read the output.
func (o *outputFlags) machine() bool { return o.json || o.csv }

// Spans of the timeline in --json and --html, unless --interval is given: at most so many, and none shorter.
const (
	jsonSpans   = 100
	jsonSpanMin = 100 * time.Millisecond
)

// span is how long a span of the timeline is.
func (o *outputFlags) span(cfg *perf.Config) time.Duration {
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

// print prints a report for programs.
func (o *outputFlags) print(w io.Writer, r *perf.Report) error {
	if o.csv {
		return printCSV(w, r)
	}
	return printJSON(w, r)
}

// runOf says where, when and how this program runs.
func runOf(args []string) perf.Run {
	b := buildVersion()
	r := perf.Run{Time: time.Now().UTC(), Platform: b.Platform, CPUs: runtime.GOMAXPROCS(0), Version: b.Version, Go: b.Go, Command: args}
	if b.Revision != "" {
		r.Version += " " + b.Revision
	}
	r.Host, _ = os.Hostname() // empty if it has none
	if kernel, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		r.Kernel = strings.TrimSpace(string(kernel))
	}
	return r
}

// csvHead are the columns of --csv. Those of the other mode are empty.
var csvHead = []string{
	"time", "host", "version", "op", "mode", "transport", "link", "memory", "peer_memory", "rails", "lanes", "size", "iterations",
	"bytes_per_second", "peak_bytes_per_second", "messages_per_second", "copy_bytes_per_second", "lost_messages",
	"t_min_us", "t_max_us", "t_typical_us", "t_avg_us", "t_stdev_us", "t_p99_us", "t_p999_us",
}

// printCSV prints a line for each result.
func printCSV(out io.Writer, r *perf.Report) error {
	w := csv.NewWriter(out)
	err := w.Write(csvHead)
	number := func(x float64) string { return strconv.FormatFloat(x, 'f', -1, 64) }
	for i := range r.Results {
		res := &r.Results[i]
		line := []string{
			r.Run.Time.Format(time.RFC3339), r.Run.Host, r.Run.Version, string(r.Op), string(r.Mode), string(r.Transport), r.Link, r.Run.Options.Memory[0].String(), r.Run.Options.Memory[1].String(),
			strconv.Itoa(r.Rails), strconv.Itoa(r.Lanes), strconv.Itoa(res.Size), strconv.FormatInt(res.Iterations, 10),
		}
		values := make([]string, len(csvHead)-len(line))
		if b := res.BandwidthResult; b != nil {
			copy(values, []string{
				number(b.BytesPerSecond), number(b.PeakBytesPerSecond), number(b.MessagesPerSecond), number(b.CopyBytesPerSecond), strconv.FormatInt(b.Lost, 10),
			})
		}
		if l := res.LatencyResult; l != nil {
			copy(values[5:], []string{number(l.Min), number(l.Max), number(l.Typical), number(l.Avg), number(l.Stdev), number(l.P99), number(l.P999)})
		}
		if err == nil {
			err = w.Write(append(line, values...))
		}
	}
	w.Flush()
	if err == nil {
		err = w.Error()
	}
	return err
}
