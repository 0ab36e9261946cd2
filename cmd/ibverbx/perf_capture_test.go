package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestPerfPcap: tshark reads what a client sends and receives as RoCE, packet by packet, and
// has nothing to complain about.
func TestPerfPcap(t *testing.T) {
	tshark, err := exec.LookPath("tshark")
	if err != nil && os.Getenv("IBVERBX_CI") == "1" {
		t.Fatalf("LookPath: got %v, want tshark", err)
	}
	token := newToken(t, "a secret of this test, long enough")
	_, addr := serve(t, "--token-file", token, "--unsealed")
	file := filepath.Join(t.TempDir(), "roce.pcap")
	status, _, stderr := command(t.Context(), "perf", "write", addr, "--token-file", token, "-s", "8,10000", "-n", "5", "--rails", "1", "-q", "1", "--unsealed", "--pcap", file)
	if status != exitOK || !strings.Contains(stderr, "packets in "+file) {
		t.Fatalf("perf --pcap: status %d, %s, want success and a count", status, stderr)
	}
	if tshark == "" {
		t.Skip("tshark is not installed")
	}
	// Others on this host may have port 4791: then the NIC has the next free one.
	out, err := exec.CommandContext(t.Context(), tshark, "-r", file, "-d", "udp.port==4791-4999,infiniband", "-T", "fields", "-e", "frame.protocols", "-e", "infiniband.bth.opcode", "-e", "_ws.expert").Output()
	if err != nil {
		t.Fatalf("tshark: got %v, want no error", err)
	}
	opcodes := map[string]int{}
	for line := range strings.Lines(string(out)) {
		fields := strings.Split(strings.TrimRight(line, "\n"), "\t")
		if len(fields) != 3 || !strings.Contains(fields[0], "infiniband") || fields[2] != "" {
			t.Fatalf("tshark says %q, want a RoCE packet without remarks", line)
		}
		opcodes[fields[1]]++
	}
	// WRITE ONLY of the small ones, FIRST, MIDDLE and LAST of the others, and their ACKs.
	for _, opcode := range []string{"10", "6", "7", "8", "17"} {
		if opcodes[opcode] == 0 {
			t.Errorf("there are packets of opcodes %v, want some of %s", opcodes, opcode)
		}
	}
}

func TestPerfPcapErrors(t *testing.T) {
	for _, tt := range []struct {
		args, want string
	}{
		{"perf --pcap x", "needs a host or --server"},
		{"perf --server --token-file t --provider rdmacore --pcap x", "--provider softnic"},
		{"perf --server --token-file t --pcap /no/such/folder/x", "/no/such/folder"},
	} {
		status, _, stderr := command(t.Context(), strings.Fields(tt.args)...)
		if status == exitOK || !strings.Contains(stderr, tt.want) {
			t.Errorf("%s: status %d, %q, want an error about %s", tt.args, status, stderr, tt.want)
		}
	}
}
