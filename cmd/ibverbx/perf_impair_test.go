package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"ibverbx/internal/perf"
)

// withServer runs a client of a server of its own, in two processes, and returns what both report.
func withServer(t *testing.T, args string) (client, server perf.Report) {
	t.Helper()
	token := newToken(t, "a secret of this test, long enough")
	other, addr := serve(t, "--token-file", token, "--json", "--once")
	words := append([]string{"perf"}, strings.Fields(args)...)
	words = append(words, addr, "--token-file", token, "--json")
	status, out, stderr := command(t.Context(), words...)
	if err := json.Unmarshal([]byte(out), &client); status != exitOK || err != nil {
		t.Fatalf("perf %s: status %d, %s, %v, want a report", args, status, stderr, err)
	}
	if status := other.end(); status != exitOK {
		t.Fatalf("perf %s: the server ended with status %d: %q", args, status, other.said)
	}
	if err := json.Unmarshal(other.stdout.Bytes(), &server); err != nil {
		t.Fatalf("perf %s: the report of the server: %v", args, err)
	}
	return client, server
}

// TestPerfKillRailTwoProcesses: the client takes the port of its own NIC down. The other rail goes on, every byte is
// right, and the lanes come back at both sides.
func TestPerfKillRailTwoProcesses(t *testing.T) {
	for _, args := range []string{
		"write -s 64K --link udp", "read -b -s 16K --link udp", "send -s 4K --transport uc --rails 2 -q 4", "write -s 1M --link auto",
	} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			client, server := withServer(t, args+" --kill-rail 1 "+lost)
			f := client.Failover
			if f == nil || f.KilledAt == nil || f.BackAt == nil || f.RecoveredAt == nil || f.LanesDown == 0 {
				t.Fatalf("the client reports %+v, want that the rail was lost and is back", f)
			}
			for _, event := range []string{"port down", "port up", "rail down", "rail up", "recovered"} {
				if !slices.ContainsFunc(f.Events, func(e perf.FailoverEvent) bool { return e.Event == event && e.End == "initiator" }) {
					t.Errorf("no %q in the events %+v", event, f.Events)
				}
			}
			if server.Failover != nil || !server.Checked || len(server.Results) != 1 || server.Results[0].Iterations == 0 {
				t.Errorf("the server reports %+v and %+v, want one checked row", server.Results, server.Failover)
			}
			for i := range server.PerLane {
				if s, c := &server.PerLane[i], &client.PerLane[i]; s.Bytes != c.Bytes || s.QPN != c.QPN {
					t.Errorf("lane %d: the server knows of %d bytes on QP %#x, the client of %d on %#x", i, s.Bytes, s.QPN, c.Bytes, c.QPN)
				}
			}
		})
	}
}
