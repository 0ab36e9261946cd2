//go:build unix

package main

import (
	"encoding/json"
	"strings"
	"syscall"
	"testing"
	"time"

	"ibverbx/internal/perf"
)

// A server that stands still for so long that all lanes exceed their retries costs time and
// nothing else: they are rebuilt, and every byte is right.
func TestPerfSurvivesStop(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes seconds")
	}
	token := newToken(t, "a secret of this test, long enough")
	server, addr := serve(t, "--token-file", token, "--once")
	client := begin(t, "perf", addr, "--token-file", token, "-s", "64K", "-t", "512", "-D", "8", "--check", "--json")
	for range 3 { // one of them finds requests in flight
		for _, signal := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGCONT} {
			time.Sleep(1300 * time.Millisecond)
			if err := server.cmd.Process.Signal(signal); err != nil {
				t.Fatalf("Signal: got %v, want no error", err)
			}
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
