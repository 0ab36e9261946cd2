//go:build unix

package main

import (
	"encoding/json"
	"strings"
	"syscall"
	"testing"
	"time"

	"ibverbx/internal/enginetest"
	"ibverbx/internal/perf/measure"
)

// terminated runs a process that would take minutes, sends it SIGTERM, and returns it when it has
// ended. If it had not begun to measure, which measured tells, it gets more time.
func terminated(t *testing.T, measured func(p *process) bool, args ...string) *process {
	t.Helper()
	for wait := 250 * time.Millisecond; ; wait *= 2 {
		p := begin(t, args...)
		time.Sleep(wait)
		enginetest.WantOK(t, "Signal", p.cmd.Process.Signal(syscall.SIGTERM))
		if status := p.end(); status == exitTerminated && measured(p) {
			return p
		} else if wait > 10*time.Second {
			t.Fatalf("ibverbx %s: after SIGTERM status %d, stdout %q, stderr %q, want %d and results", strings.Join(args, " "), status, p.stdout.String(), p.said, exitTerminated)
		}
	}
}

// TestSIGTERMPrintsResults: SIGTERM ends every command that runs long as Ctrl-C does. It prints what
// it has, JSON is one valid object that says so, and the status is 143.
func TestSIGTERMPrintsResults(t *testing.T) {
	report := func(p *process) bool {
		var r measure.Report
		err := json.Unmarshal(p.stdout.Bytes(), &r)
		return err == nil && r.Interrupted && len(r.Results) == 1 && r.Results[0].Iterations > 0
	}
	table := func(p *process) bool { return lineWith(p.stdout.String(), " 65536 ") != "" }
	sim := func(p *process) bool {
		var r simReport
		err := json.Unmarshal(p.stdout.Bytes(), &r)
		return err == nil && r.Interrupted && r.Worlds > 0 && len(r.Failures) == 0
	}
	server, addr := serve(t, noAuth, "--json")
	for name, tt := range map[string]struct {
		measured func(p *process) bool
		args     string
	}{
		"one process":        {table, "perf -s 64K -D 600 --provider softnic"},
		"one process, JSON":  {report, "perf -s 64K -D 600 --provider softnic --json"},
		"latency, JSON":      {report, "perf -s 64K -D 600 --provider softnic --lat --json"},
		"two processes":      {table, "perf -s 64K -D 600 HOST"},
		"both ways":          {table, "perf -b -s 64K -D 600 HOST"},
		"two processes JSON": {report, "perf -s 64K -D 600 HOST --json"},
		"sim, JSON":          {sim, "sim --seeds 100000000 --json"},
	} {
		t.Run(name, func(t *testing.T) {
			args := strings.Fields(tt.args)
			for i, word := range args {
				if word == "HOST" {
					args = append(append(args[:i:i], addr, noAuth), args[i+1:]...)
				}
			}
			terminated(t, tt.measured, args...)
		})
	}
	enginetest.WantOK(t, "Signal", server.cmd.Process.Signal(syscall.SIGTERM))
	if status := server.end(); status != exitOK {
		t.Errorf("the server ended with status %d after SIGTERM, want %d: it is its normal end", status, exitOK)
	}
	for d := json.NewDecoder(&server.stdout); d.More(); {
		if err := d.Decode(new(measure.Report)); err != nil {
			t.Fatalf("the server printed a report that is not JSON: %v", err)
		}
	}
}

// TestSIGTERMOfServer: a server that gets SIGTERM while it measures prints the rows that it has and
// ends well.
func TestSIGTERMOfServer(t *testing.T) {
	for wait := time.Second; ; wait *= 2 {
		server, addr := serve(t, noAuth, "--json")
		client := begin(t, "perf", addr, noAuth, "-a", "-D", "0.5")
		server.line("let in")
		time.Sleep(wait)
		enginetest.WantOK(t, "Signal", server.cmd.Process.Signal(syscall.SIGTERM))
		status := server.end()
		_ = client.cmd.Process.Kill() // it may wait for a server that is gone
		client.end()
		var r measure.Report
		if err := json.Unmarshal(server.stdout.Bytes(), &r); status == exitOK && err == nil && r.Interrupted && len(r.Results) > 0 {
			return
		} else if wait > 10*time.Second {
			t.Fatalf("status %d, stdout %q (%v), stderr %q, want %d and the results", status, server.stdout.String(), err, server.said, exitOK)
		}
	}
}
