package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"ibverbx/internal/enginetest"
)

// tool returns the path of a program from Debian's prometheus package.
func tool(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil && os.Getenv("IBVERBX_CI") == "1" {
		t.Fatalf("LookPath: got %v, want %s: install the Debian package prometheus", err, name)
	}
	if err != nil {
		t.Skipf("needs %s: install the Debian package prometheus", name)
	}
	return path
}

// fetch returns the HTTP response of a URL.
func fetch(t *testing.T, from string) (status int, body []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, from, nil)
	if err != nil {
		t.Fatalf("%s: got %v, want no error", from, err)
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatalf("%s: got %v, want no error", from, err)
	}
	defer func() { _ = answer.Body.Close() }()
	body, err = io.ReadAll(answer.Body)
	if err != nil {
		t.Fatalf("%s: got %v, want no error", from, err)
	}
	return answer.StatusCode, body
}

// metricsAt waits until a process serves metrics and returns the URL.
func (p *process) metricsAt() string {
	p.t.Helper()
	_, at, _ := strings.Cut(p.line("metrics at "), "metrics at ")
	at, _, _ = strings.Cut(at, `"`) // of a JSON object
	return at
}

// value returns a sample of a scrape, by name and labels.
func value(t *testing.T, scrape []byte, series string) (v float64) {
	t.Helper()
	found := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(series) + ` (\S+)$`).FindSubmatch(scrape)
	if found == nil {
		t.Fatalf("no %s in the scrape\n%s", series, scrape)
	}
	if _, err := fmt.Sscan(string(found[1]), &v); err != nil {
		t.Fatalf("%s = %s: got %v, want a number", series, found[1], err)
	}
	return v
}

// TestPerfMetrics: a server keeps its counters after a client disconnects, and promtool accepts names and help texts.
func TestPerfMetrics(t *testing.T) {
	p := begin(t, "perf", "serve", "--listen", "127.0.0.1:0", noAuth, "--metrics", "127.0.0.1:0", "--link", "udp")
	at := p.metricsAt()
	server, addr := served(t, p)
	const clients, messages = 2, 100
	for range clients {
		status, _, stderr := command(t.Context(), "perf", addr, noAuth, "--imm", "-s", "64,4K", "-n", fmt.Sprint(messages))
		if status != exitOK {
			t.Fatalf("perf: status %d, %s", status, stderr)
		}
		server.line("done")
	}
	status, scrape := fetch(t, at)
	if status != http.StatusOK {
		t.Errorf("%s: status %d, want %d", at, status, http.StatusOK)
	}
	for series, least := range map[string]float64{
		`ibverbx_listener_admitted_total{listener="perf"}`:                            clients,
		`ibverbx_session_receives_completed_total{session="127.0.0.1"}`:               clients * 2 * messages,
		`ibverbx_rail_completions_total{device="soft1",rail="1",session="127.0.0.1"}`: 1,
		`ibverbx_peer_messages_total{direction="in",session="127.0.0.1"}`:             clients,
		`ibverbx_nic_received_packets_total{device="soft0"}`:                          messages,
		`ibverbx_listener_half_open{listener="perf"}`:                                 0,
	} {
		if got := value(t, scrape, series); got < least {
			t.Errorf("%s = %v, want at least %v", series, got, least)
		}
	}
	if bytes.Contains(scrape, []byte("ibverbx_sessions{")) {
		t.Errorf("there are open sessions after the last client:\n%s", scrape)
	}
	if status, _ := fetch(t, strings.TrimSuffix(at, "/metrics")+"/debug"); status != http.StatusNotFound {
		t.Errorf("/debug: status %d, want %d", status, http.StatusNotFound)
	}
	t.Run("promtool", func(t *testing.T) { checkMetrics(t, scrape) })
}

// checkMetrics lets promtool check the names and the help texts of metrics.
func checkMetrics(t *testing.T, scrape []byte) {
	t.Helper()
	check := exec.CommandContext(t.Context(), tool(t, "promtool"), "check", "metrics")
	check.Stdin = bytes.NewReader(scrape)
	if out, err := check.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}
}

// TestPerfMetricsAddress: a test within one process serves metrics. An unusable address fails the command before the
// measurement.
func TestPerfMetricsAddress(t *testing.T) {
	args := []string{"perf", "-n", "5", "-s", "8", "--metrics"}
	status, _, stderr := command(t.Context(), append(args, "127.0.0.1:0")...)
	_, at, _ := strings.Cut(strings.TrimSpace(stderr), "metrics at http://")
	addr, _, _ := strings.Cut(at, "/metrics")
	if _, err := net.ResolveTCPAddr("tcp", addr); status != exitOK || err != nil {
		t.Errorf("status %d, %q, want %d and the address of the metrics", status, stderr, exitOK)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	enginetest.WantOK(t, "Listen", err)
	defer func() { _ = l.Close() }()
	for _, addr := range []string{l.Addr().String(), "nonsense", "127.0.0.1:66666"} {
		fails(t, exitFailure, "--metrics", append(args, addr)...)
	}
}

// TestLongCommandsServeMetrics: every long-running command serves metrics: demo for both hosts, sim for its progress,
// and file transfers for their NICs, here while they wait for an unresponsive host.
func TestLongCommandsServeMetrics(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	enginetest.WantOK(t, "Listen", err)
	defer func() { _ = silent.Close() }()
	host := silent.Addr().String() + " x --provider softnic " + noAuth
	for args, series := range map[string]string{
		"get " + host: `go_goroutines`,
		"put " + host: `go_goroutines`,
		"demo --web":  `ibverbx_rail_bytes_total{device="soft2",rail="1",session="initiator"}`,
		"sim --scenario bad-key --seeds 100000000 --json": `ibverbx_sim_seeds_total`,
		"sim --measured --seeds 1000":                     `ibverbx_sim_worlds_total`,
	} {
		t.Run(strings.Fields(args)[0], func(t *testing.T) {
			p := begin(t, append(strings.Fields(args), "--metrics", "127.0.0.1:0")...)
			at := p.metricsAt()
			for {
				status, scrape := fetch(t, at)
				if status != http.StatusOK {
					t.Fatalf("%s: status %d, want %d", at, status, http.StatusOK)
				}
				nics := strings.Contains(string(scrape), "\nibverbx_nic_sent_packets_total{")
				if strings.Contains(string(scrape), "\n"+series) && value(t, scrape, series) > 0 && (nics || series != "go_goroutines") {
					break
				}
			}
			p.interrupt()
		})
	}
}
