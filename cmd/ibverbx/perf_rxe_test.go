package main

import (
	"os"
	"strings"
	"testing"
)

// TestRXETwoProcesses measures between two processes on the kernel's rxe devices.
func TestRXETwoProcesses(t *testing.T) {
	if os.Getenv("IBVERBX_TEST_RXE") != "1" {
		t.Skip("needs the kernel's rxe devices: run test/rxe/all")
	}
	token := newToken(t, "a secret of this test, long enough")
	server, addr := serve(t, "--token-file", token, "--provider", "rdmacore", "--devices", "=rxe1,rxe3")
	for _, args := range []string{
		"write -s 64K", "read -s 64K", "send -s 4K", "atomic", "write --imm -s 64K", "write --imm --scheme dqplb -s 64K", "write -q 1 --rails 1 -s 4K",
		"write -b -s 64K", "write -q 2 -s 64K --transport uc", "send --lat -s 64", "write --lat -s 64",
	} {
		t.Run(args, func(t *testing.T) {
			words := append([]string{"perf"}, strings.Fields(args)...)
			words = append(words, addr, "--token-file", token, "--provider", "rdmacore", "--devices", "=rxe0,rxe2", "--check", "-n", "64")
			status, out, stderr := command(t.Context(), words...)
			if status != exitOK || !strings.Contains(out, "rdmacore") {
				t.Errorf("perf %s: status %d, %s\n%s", args, status, stderr, out)
			}
			if !strings.Contains(server.line("client "), "done") {
				t.Errorf("perf %s: the server said %q, want that it is done", args, server.said)
			}
		})
	}
	if status := server.interrupt(); status != exitOK {
		t.Errorf("the server ended with status %d, want %d", status, exitOK)
	}
}
