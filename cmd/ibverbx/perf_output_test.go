package main

import (
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// TestPerfInterval: a running size prints one line per interval and rail, and shares add up. The rest after the last
// interval may be idle.
func TestPerfInterval(t *testing.T) {
	out := succeed(t, "perf", "-s", "64K", "-D", "0.3", "--interval", "0.05")
	lines := regexp.MustCompile(`(?m)^ +([0-9.]+) s  64 KiB    rail ([01]) +[0-9.]+ MiB/sec +([0-9.]+) %$`).FindAllStringSubmatch(out, -1)
	if len(lines) < 2 || len(lines)%2 != 0 {
		t.Fatalf("%d lines of rates, want those of two rails:\n%s", len(lines), out)
	}
	last := 0.0
	for i := 0; i < len(lines); i += 2 {
		at, _ := strconv.ParseFloat(lines[i][1], 64)
		a, _ := strconv.ParseFloat(lines[i][3], 64)
		b, _ := strconv.ParseFloat(lines[i+1][3], 64)
		idle := a+b == 0 && i+2 == len(lines)
		if at <= last || lines[i][2] != "0" || lines[i+1][2] != "1" || (a+b < 99.8 || a+b > 100.2) && !idle {
			t.Errorf("%q and %q, want rails 0 and 1, later than %v, with shares of 100 %%", lines[i][0], lines[i+1][0], last)
		}
		last = at
	}
}

// TestPerfTimeline: --json contains the rate over time. Its spans are contiguous and add up to the row's bytes.
func TestPerfTimeline(t *testing.T) {
	for _, args := range []string{"-s 64K -D 0.3 --interval 0.05", "-s 64K -D 0.3 -b --interval 0.05", "-c UC -q 2 -s 64K -D 0.2 --interval 0.05"} {
		r := reportOf(t, strings.Fields(args)...)
		at, bytes, rails := 0.0, 0.0, 0.0
		line := r.Results[0].Timeline
		for _, s := range line {
			if s.From != at || s.To <= s.From {
				t.Errorf("%s: a span from %v to %v, want it to begin at %v", args, s.From, s.To, at)
			}
			at = s.To
			bytes += s.BytesPerSecond * (s.To - s.From)
			for _, rate := range s.PerRail {
				rails += rate * (s.To - s.From)
			}
		}
		// Rails count posted bytes, and the last partial interval may be missing.
		want := float64(r.Results[0].Iterations) * 65536
		if len(line) < 1 || bytes > want*1.05 || bytes < want*0.5 || rails > want*1.5 || rails < want*0.5 {
			t.Errorf("%s: %d spans with %.0f bytes, %.0f by rail, want some and about %.0f", args, len(line), bytes, rails, want)
		}
	}
}

// TestPerfHistogram: the buckets of --json hold all samples.
func TestPerfHistogram(t *testing.T) {
	n, res := int64(0), reportOf(t, "--lat", "-s", "8", "-n", "500").Results[0]
	for _, b := range res.Histogram {
		n += b.Count
	}
	first, last := res.Histogram[0], res.Histogram[len(res.Histogram)-1]
	if n != 500 || res.Min < first.From || res.Min >= first.To || res.Max < last.From || res.Max >= last.To {
		t.Errorf("%d samples from %+v to %+v, want 500 from %v to %v", n, first, last, res.Min, res.Max)
	}
	all, err := hdrhistogram.Decode([]byte(res.HDR))
	if err != nil || all.TotalCount() != 500 || math.Abs(float64(all.Max())/1e3-res.Max) > res.Max/500 {
		t.Errorf("hdr is %.40q (%v), want 500 samples up to %v us", res.HDR, err, res.Max)
	}
}
