package main

import (
	"html"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ibverbx/internal/enginetest"
)

// htmlOf runs a command with --html and returns the file's content.
func htmlOf(t *testing.T, args ...string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "report.html")
	succeed(t, append(args, "--html", file)...)
	b, err := os.ReadFile(file)
	enginetest.WantOK(t, "ReadFile", err)
	return html.UnescapeString(string(b))
}

// TestPerfHTML: the file contains results, rates over time, rail and lane traffic, setup and environment.
func TestPerfHTML(t *testing.T) {
	t.Parallel()
	text := htmlOf(t, "perf", "-s", "64K,1M", "-D", "0.3", "--check", "--tclass", "104")
	says(t, text,
		"<h1>ibverbx perf: RDMA_Write BW Test</h1>", "Verdict: ", "Every byte was compared", "<td class=\"\">65536</td>", "<td class=\"\">1048576</td>",
		"Average rate by size", "Rate of each rail", "rail 1, soft2 -> soft3", "<h3>Lanes</h3>", "<td class=\"\">data</td>", "<dt>Device</dt><dd>soft0,soft2 -> soft1,soft3</dd>",
		"<dt>Settings</dt><dd>tclass 104", "<dt>Version</dt>", "<dt>Kernel</dt>", "<dt>Command</dt><dd>ibverbx perf -s 64K,1M -D 0.3 --check",
	)
	if strings.Contains(text, "by time") {
		t.Errorf("the file has a histogram, want none without --lat")
	}
}

// TestPerfHTMLLatency: with --lat the file contains a histogram per size and a CDF.
func TestPerfHTMLLatency(t *testing.T) {
	t.Parallel()
	text := htmlOf(t, "perf", "send", "--lat", "-s", "8,4K", "-n", "2000")
	says(t, text,
		"Send Latency Test", "<th>99.9%</th>", "Latency by size", "Messages that took no longer", "Messages of 8 B by time", "Messages of 4 KiB by time",
		`<rect class="bar"`, ">median ",
	)
}

// TestPerfHTMLFailover: with --kill-rail the file marks the loss and the recovery of the rail.
func TestPerfHTMLFailover(t *testing.T) {
	t.Parallel()
	text := htmlOf(t, "perf", "--kill-rail", "1", "--at", "0.2", "--back", "0.2")
	says(t, text,
		"The loss of rail 1", `<line class="mark bad"`, ">ports of rail 1 down: soft2 and soft3</text>", ">ports of rail 1 up: soft2 and soft3</text>",
		">recovered: all lanes are in service</text>", "<td class=\"\">during</td>",
	)
}

// TestHTMLUnwritable: an unwritable file is reported before the test starts.
func TestHTMLUnwritable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "none", "report.html")
	fails(t, exitFailure, "--html: open "+file, "perf", "-D", "600", "--html", file)
}

// TestHTMLOfFailedTest: a failed test leaves neither an empty file nor a changed existing one.
func TestHTMLOfFailedTest(t *testing.T) {
	file := filepath.Join(t.TempDir(), "report.html")
	failing := []string{"perf", "send", "-c", "UC", "--lat", "-s", "8", "-n", "10", "--impair", "loss=100%", "--html", file}
	for _, before := range []string{"", "an earlier report"} {
		if before != "" {
			if err := os.WriteFile(file, []byte(before), 0o644); err != nil {
				t.Fatalf("WriteFile: got %v, want no error", err)
			}
		}
		if status, _, stderr := command(t.Context(), failing...); status != exitFailure {
			t.Fatalf("perf: status %d, stderr %q, want %d", status, stderr, exitFailure)
		}
		after, err := os.ReadFile(file)
		if string(after) != before || (err == nil) != (before != "") {
			t.Errorf("after a test that failed the file has %q (%v), want %q", after, err, before)
		}
	}
}
