//go:build unix

package main

import (
	"encoding/json"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"ibverbx/internal/perf"
)

// stopped is how long the server stands still: more than the retries of a QP take.
func stopped() time.Duration {
	if os.Getenv("IBVERBX_LONG") == "1" {
		return 10 * time.Second
	}
	return 4 * time.Second
}

// A server that stands still for so long that all lanes exceed their retries costs time and
// nothing else: they are rebuilt, and every byte is right.
func TestPerfSurvivesStop(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes seconds")
	}
	token := newToken(t, "a secret of this test, long enough")
	server, addr := serve(t, "--token-file", token, "--once")
	client := begin(t, "perf", addr, "--token-file", token, "-s", "64K", "-t", "512", "-D", "12", "--check", "--json")
	server.line("let in") // from here on most of the time something is in flight
	time.Sleep(time.Second)
	for _, signal := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGCONT} {
		if err := server.cmd.Process.Signal(signal); err != nil {
			t.Fatalf("Signal: got %v, want no error", err)
		}
		if signal == syscall.SIGSTOP {
			time.Sleep(stopped())
		}
	}
	if status := client.end(); status != exitOK {
		t.Fatalf("the client ended with status %d: %s, want %d", status, strings.Join(client.said, "\n"), exitOK)
	}
	var r perf.Report
	if err := json.Unmarshal(client.stdout.Bytes(), &r); err != nil || len(r.Results) != 1 || r.Results[0].Iterations == 0 || !r.Checked {
		t.Errorf("the client reports %+v, %v, want one row, checked", r.Results, err)
	}
	deaths := uint64(0)
	for _, lane := range r.PerLane {
		deaths += lane.Deaths
	}
	if deaths < uint64(r.Lanes) {
		t.Errorf("%d lanes were lost, want all %d at least once", deaths, r.Lanes)
	}
	if status := server.end(); status != exitOK {
		t.Errorf("the server ended with status %d: %s, want %d", status, strings.Join(server.said, "\n"), exitOK)
	}
}
