package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"ibverbx/internal/perf/measure"
)

// withServer runs a client against its own server, in two processes, and returns both reports.
func withServer(t *testing.T, args string) (client, server measure.Report) {
	t.Helper()
	token := newToken(t, "a secret of this test, long enough")
	other, addr := serve(t, "--token-file", token, "--json", "--once")
	client = reportOf(t, append(strings.Fields(args), addr, "--token-file", token)...)
	if status := other.end(); status != exitOK {
		t.Fatalf("perf %s: the server ended with status %d: %q", args, status, other.said)
	}
	if err := json.Unmarshal(other.stdout.Bytes(), &server); err != nil {
		t.Fatalf("perf %s: the report of the server: %v", args, err)
	}
	return client, server
}

// TestPerfKillRailTwoProcesses: the client disables its NIC port. The other rail continues, the data is intact,
// and the lanes recover on both sides.
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
				if !slices.ContainsFunc(f.Events, func(e measure.FailoverEvent) bool { return e.Event == event && e.End == "initiator" }) {
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

// TestPerfImpair: the data is intact despite packet loss on one rail, within a process and on both sides of two.
func TestPerfImpair(t *testing.T) {
	const args = "write -s 64K -n 400 --check --impair rail=1,loss=2%,delay=100us --ack-timeout 12"
	lossy := func(name string, r *measure.Report) {
		if len(r.PerRail) != 2 || r.PerRail[0].Health == nil || r.PerRail[1].Health == nil {
			t.Fatalf("%s: the rails are %+v, want two with health", name, r.PerRail)
		}
		if n := r.PerRail[1].Health.Retransmits; n == 0 {
			t.Errorf("%s: rail 1 retransmitted nothing, want that 2 %% of its packets are lost", name)
		}
		if i := r.Run.Options.Impair; len(i) != 1 || i[0].Rail != 1 || i[0].Loss != 0.02 {
			t.Errorf("%s: the options have %+v, want the faults", name, i)
		}
	}
	t.Run("one process", func(t *testing.T) {
		r := reportOf(t, strings.Fields(args)...)
		lossy("one process", &r)
	})
	t.Run("two processes", func(t *testing.T) {
		client, server := withServer(t, args)
		lossy("the client", &client)
		lossy("the server", &server)
		if client.Link != "udp" {
			t.Errorf("the link is %s, want udp: shared memory has no packets to lose", client.Link)
		}
	})
}

// TestPerfImpairReachesServer: impairments apply to the server's NICs too. The server sends READ responses, so only
// its NICs can delay them.
func TestPerfImpairReachesServer(t *testing.T) {
	client, _ := withServer(t, "read --lat -s 8 -n 20 --impair delay=5ms")
	if got := client.Results[0].Min; got < 10_000 {
		t.Errorf("a READ took %.0f us, want at least 10000: 5 ms in each direction", got)
	}
}

func TestPerfImpairErrors(t *testing.T) {
	for args, want := range map[string]string{
		"--impair loss=200%":                               "part of the packets",
		"--impair rail=5,loss=1%":                          "use rail=0 to rail=1",
		"--impair loss=1% --provider rdmacore":             "use software NICs",
		"--impair loss=1% --server --token-file T":         "--impair belongs to the client",
		"--impair loss=1% --link shm node1 --token-file T": "use udp or auto",
	} {
		refused(t, "perf "+args, want)
	}
}
