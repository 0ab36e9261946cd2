//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"ibverbx/internal/enginetest"
	"ibverbx/internal/perf/measure"
)

// TestPerfSurvivesStop: a server stopped long enough for lanes to exceed their retries only costs time. The lanes are
// rebuilt and the data is intact. Without --check, requests are always in flight; with it, possibly none when the
// server stops.
func TestPerfSurvivesStop(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes seconds")
	}
	for _, check := range []bool{false, true} {
		t.Run(fmt.Sprint("check=", check), func(t *testing.T) {
			t.Parallel()
			survivesStop(t, check)
		})
	}
}

func survivesStop(t *testing.T, check bool) {
	server, addr := serve(t, noAuth, "--once")
	args := []string{"perf", addr, noAuth, "-s", "1M", "-D", "3", "--ack-timeout", "12", "--json", "--link", "udp"}
	if check {
		args = append(args, "--check")
	}
	client := begin(t, args...)
	server.prints("TX depth") // both sides are ready, and the client is about to start
	time.Sleep(time.Second / 2)
	enginetest.WantOK(t, "Signal", server.cmd.Process.Signal(syscall.SIGSTOP))
	time.Sleep(1500 * time.Millisecond)
	enginetest.WantOK(t, "Signal", server.cmd.Process.Signal(syscall.SIGCONT))
	if status := client.end(); status != exitOK {
		t.Fatalf("the client ended with status %d: %s, want %d", status, strings.Join(client.said, "\n"), exitOK)
	}
	var r measure.Report
	if err := json.Unmarshal(client.stdout.Bytes(), &r); err != nil || len(r.Results) != 1 || r.Results[0].Iterations == 0 || r.Checked != check {
		t.Errorf("the client reports %+v, %v, want one row, checked %v", r.Results, err, check)
	}
	deaths := uint64(0)
	for _, lane := range r.PerLane {
		deaths += lane.Deaths
	}
	if !check && deaths == 0 { // the exact number depends on timers
		t.Errorf("no lane was lost, want some")
	}
	if status := server.end(); status != exitOK {
		t.Errorf("the server ended with status %d: %s, want %d", status, strings.Join(server.said, "\n"), exitOK)
	}
}

// TestPerfSecondSignal: a second signal stops a client immediately, even while it is blocked. The test uses SIGTERM,
// because background jobs of a shell ignore SIGINT.
func TestPerfSecondSignal(t *testing.T) {
	server, addr := serve(t, noAuth, "--once")
	client := begin(t, "perf", addr, noAuth, "-D", "60", "--link", "udp", "--impair", "delay=10s")
	server.prints("TX depth")
	ended := make(chan int, 1)
	go func() { ended <- client.end() }()
	for {
		_ = client.cmd.Process.Signal(syscall.SIGTERM) // fails if the process has exited
		select {
		case <-ended:
			if status, _ := client.cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signal() != syscall.SIGTERM {
				t.Errorf("the client ended with %v, want by the second signal", client.cmd.ProcessState)
			}
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}
