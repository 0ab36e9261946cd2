package main

import (
	"net"
	"strings"
	"testing"
)

// TestPerftestFlags: perftest flags take effect, or are accepted and ignored where perf does not need them.
func TestPerftestFlags(t *testing.T) {
	succeed(t, "perf", "-F", "-N", "-s", "64", "-n", "10")
	if out := succeed(t, "perf", "--help"); strings.Contains(out, "--CPU-freq") || strings.Contains(out, "--rdma_cm") {
		t.Errorf("the help has flags that are only understood:\n%s", out)
	}
	// -d selects a missing device.
	status, _, stderr := command(t.Context(), "perf", "--provider", "auto", "-d", "mlx5_77")
	if status == exitOK || stderr == "" {
		t.Errorf("-d of a device that is not there: status %d, %q, want an error", status, stderr)
	}
}

// TestPerftestAnswers: the error for an unsupported perftest flag names the replacement.
func TestPerftestAnswers(t *testing.T) {
	for args, want := range map[string]string{
		"-i 1":           "--devices mlx5_0:1",
		"-R":             "drop it",
		"-I 64":          "drop it",
		"-l 16":          "--cq-mod",
		"-H":             "--json",
		"-U":             "--json",
		"--post_list 16": "--cq-mod",
		"-p 0":           "1 to 65535",
		"-p 18515":       "needs a HOST",
		"-p 1 --listen :2 --server --token-file x": "a port already",
		"write node1:1 -p 2 --token-file x":        "a port already",
	} {
		refused(t, "perf "+args, want)
	}
}

// TestPerftestPort: -p sets the port of the client's host.
func TestPerftestPort(t *testing.T) {
	_, addr := serve(t, noAuth)
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatalf("SplitHostPort: got %v, want no error", err)
	}
	if status, _, stderr := command(t.Context(), "perf", "write", host, "-p", port, noAuth, "-s", "64", "-n", "10"); status != exitOK {
		t.Errorf("perf write %s -p %s: status %d, %s, want success", host, port, status, stderr)
	}
}
