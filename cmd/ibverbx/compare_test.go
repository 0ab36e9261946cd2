package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ibverbx/internal/enginetest"
	"ibverbx/internal/perf/measure"
)

// reportFile writes a file with one report per factor.
func reportFile(t *testing.T, name string, factors ...float64) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	f, err := os.Create(file)
	enginetest.WantOK(t, "Create", err)
	for _, x := range factors {
		bandwidth := measure.Report{Op: measure.Write, Mode: measure.Bandwidth, Results: []measure.Result{
			{Size: 64, BandwidthResult: &measure.BandwidthResult{BytesPerSecond: x * 200 * mebibyte}},
			{Size: 8388608, BandwidthResult: &measure.BandwidthResult{BytesPerSecond: 123456 * mebibyte}},
		}}
		latency := measure.Report{Op: measure.Send, Mode: measure.Latency, Results: []measure.Result{{Size: 8, LatencyResult: &measure.LatencyResult{Typical: 2 * x, P99: 5, P999: 9}}}}
		for _, r := range []*measure.Report{&bandwidth, &latency} {
			r.Run = measure.Run{Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Host: "node1"}
			enginetest.WantOK(t, "Encode", json.NewEncoder(f).Encode(r))
		}
	}
	enginetest.WantOK(t, "Close", f.Close())
	return file
}

// TestCompareGolden: the comparison of two files prints the expected table in 80 columns.
func TestCompareGolden(t *testing.T) {
	a := reportFile(t, "before.json", 1, 1.01, 1.02, 1.03, 1.04, 1.05)
	b := reportFile(t, "a name that is long.json", 1.5, 1.51, 1.52, 1.53, 1.54, 1.55)
	out := succeed(t, "compare", a, b)
	out = strings.ReplaceAll(strings.ReplaceAll(out, filepath.Dir(a)+"/", ""), filepath.Dir(b)+"/", "")
	want := `before.json: 12 reports, 2026-01-02 03:04:05 on node1
a name that is long.json: 12 reports, 2026-01-02 03:04:05 on node1

Send Latency Test: t_typical [usec], less is better
 #bytes     before.json          a name that is lon.. change
 8          2.05 +-2%            3.05 +-2%            +48.78% (p=0.002 n=6+6)

Send Latency Test: 99% percentile [usec], less is better
 #bytes     before.json          a name that is lon.. change
 8          5.00 +-0%            5.00 +-0%            ~ (p=1.000 n=6+6)

Send Latency Test: 99.9% percentile [usec], less is better
 #bytes     before.json          a name that is lon.. change
 8          9.00 +-0%            9.00 +-0%            ~ (p=1.000 n=6+6)

RDMA_Write BW Test: BW average [MiB/sec], more is better
 #bytes     before.json          a name that is lon.. change
 64         205.00 +-2%          305.00 +-2%          +48.78% (p=0.002 n=6+6)
 8388608    123456.00 +-0%       123456.00 +-0%       ~ (p=1.000 n=6+6)
`
	if out != want {
		t.Errorf("compare prints\n%s\nwant\n%s", out, want)
	}
	for line := range strings.Lines(out) {
		if n := len(strings.TrimSuffix(line, "\n")); n > 80 {
			t.Errorf("%q has %d columns, want at most 80", line, n)
		}
	}
}

// TestCompareFew: with few samples no difference is significant, and the output names the next step.
func TestCompareFew(t *testing.T) {
	out := succeed(t, "compare", reportFile(t, "a.json", 1), reportFile(t, "b.json", 9), reportFile(t, "c.json", 1))
	if !strings.Contains(out, "~ (p=1.000 n=1+1)") || !strings.Contains(out, "append more reports") || strings.Count(out, "RDMA_Write BW Test") != 2 {
		t.Errorf("compare of three files with one sample each prints\n%s\nwant two tables, no change, and advice", out)
	}
}

// TestComparePerf: compare accepts the output of perf. Several files of one side are combined, including their latency
// histograms.
func TestComparePerf(t *testing.T) {
	var files []string
	for i, mode := range []string{"--lat=false", "--lat", "--lat"} {
		files = append(files, filepath.Join(t.TempDir(), fmt.Sprint(i, ".json")))
		enginetest.WantOK(t, "WriteFile", os.WriteFile(files[i], []byte(succeed(t, "perf", mode, "-s", "64,64K", "-n", "50", "--json")), 0o600))
	}
	if out := succeed(t, "compare", files[0], files[0]); strings.Count(out, "~ (p=1.000 n=1+1)") != 2 {
		t.Errorf("compare of a file with itself prints\n%s\nwant two sizes without a change", out)
	}
	both := files[1] + "," + files[2]
	if out := succeed(t, "compare", both, both); strings.Count(out, "~ (p=1.000 n=2+2)") != 6 || !strings.Contains(out, "1.json +1") || !strings.Contains(out, "99.9% percentile") {
		t.Errorf("compare of two files with themselves prints\n%s\nwant two sizes, with three percentiles each", out)
	}
}

func TestCompareErrors(t *testing.T) {
	file := reportFile(t, "a.json", 1)
	for want, args := range map[string][]string{
		"two sides":            {"compare", file},
		"no such file":         {"compare", file, "/no/such/file"},
		"compare.go: report 1": {"compare", file, file + ",compare.go"},
	} {
		if status, _, stderr := command(t.Context(), args...); status == exitOK || !strings.Contains(stderr, want) {
			t.Errorf("%v: status %d, %s, want an error about %q", args, status, stderr, want)
		}
	}
	if status, _, _ := command(t.Context(), "compare", file, file); status != exitOK {
		t.Errorf("compare of a file with itself: status %d, want %d", status, exitOK)
	}
}
