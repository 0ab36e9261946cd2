package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// dissect returns fields of every packet in a file, as decoded by tshark with default settings.
func dissect(t *testing.T, file string, fields ...string) (packets [][]string) {
	t.Helper()
	tshark, err := exec.LookPath("tshark")
	if err != nil && os.Getenv("IBVERBX_CI") == "1" {
		t.Fatalf("LookPath: got %v, want tshark", err)
	}
	if err != nil {
		t.Skip("tshark is not installed")
	}
	args := []string{"-n", "-r", file, "-T", "fields"}
	for _, f := range fields {
		args = append(args, "-e", f)
	}
	out, err := exec.CommandContext(t.Context(), tshark, args...).Output()
	if err != nil {
		t.Fatalf("tshark: got %v, want no error", err)
	}
	for line := range strings.Lines(string(out)) {
		packets = append(packets, strings.Split(strings.TrimRight(line, "\n"), "\t"))
	}
	return packets
}

// TestPerfPcap: tshark with default settings decodes every packet of a client as RoCE without complaints, although
// packets are sealed and use other ports. Each NIC is an interface. Warm-up is not captured.
func TestPerfPcap(t *testing.T) {
	token := newToken(t, "a secret of this test, long enough")
	_, addr := serve(t, "--token-file", token)
	plain, wire := filepath.Join(t.TempDir(), "roce.pcapng"), filepath.Join(t.TempDir(), "wire.pcapng")
	status, _, stderr := command(t.Context(), "perf", "write", addr, "--token-file", token, "-s", "8,10000", "-n", "5", "--rails", "2", "-q", "2",
		"--fragment", "5000", "--pcap", plain, "--pcap-wire", wire, "--snaplen", "100")
	if status != exitOK || !strings.Contains(stderr, "packets in "+plain) || !strings.Contains(stderr, "packets in "+wire) {
		t.Fatalf("perf --pcap: status %d, %s, want success and two counts", status, stderr)
	}
	opcodes, nics, small := map[string]int{}, map[string]int{}, map[string]bool{}
	packets := dissect(t, plain, "frame.protocols", "_ws.expert", "_ws.malformed", "frame.interface_name", "frame.cap_len", "infiniband.bth.opcode",
		"infiniband.reth.dmalen", "infiniband.bth.destqp", "infiniband.bth.psn")
	for _, p := range packets {
		if len(p) != 9 || !strings.Contains(p[0], ":udp:infiniband") || p[1] != "" || p[2] != "" {
			t.Fatalf("tshark says %q, want a RoCE packet without remarks", p)
		}
		if n, err := strconv.Atoi(p[4]); err != nil || n > 100 {
			t.Errorf("a packet has %s bytes, want at most 100", p[4])
		}
		nics[p[3]]++
		opcodes[p[5]]++
		if p[6] == "8" {
			small[p[7]+" "+p[8]] = true // retransmissions repeat the PSN
		}
	}
	// WRITE ONLY for small messages, FIRST and LAST for others, and ACKs.
	for _, opcode := range []string{"10", "6", "8", "17"} {
		if opcodes[opcode] == 0 {
			t.Errorf("there are packets of opcodes %v, want some of %s", opcodes, opcode)
		}
	}
	if nics["soft0"] == 0 || nics["soft1"] == 0 || len(nics) != 2 {
		t.Errorf("the packets are of %v, want soft0 and soft1", nics)
	}
	if len(small) != 5 {
		t.Errorf("%d messages of 8 bytes were captured, want the 5 that were measured", len(small))
	}
	for _, p := range dissect(t, wire, "frame.protocols", "udp.dstport") {
		if strings.Contains(p[0], "infiniband") || p[1] == "4791" {
			t.Fatalf("on the wire tshark says %q, want a sealed packet", p)
		}
	}
}

func TestPerfPcapErrors(t *testing.T) {
	for _, tt := range []struct {
		args, want string
	}{
		{"perf --pcap x", "need a HOST"},
		{"perf --pcap-wire x", "need a HOST"},
		{"perf --snaplen 100", "add --pcap or --pcap-wire"},
		{"perf serve --token-file t --pcap x --snaplen 0", "1 to 65535"},
		{"perf serve --token-file t --provider rdmacore --pcap x", "use software NICs"},
		{"perf serve --token-file t --pcap /no/such/folder/x", "/no/such/folder"},
	} {
		status, _, stderr := command(t.Context(), strings.Fields(tt.args)...)
		if status == exitOK || !strings.Contains(stderr, tt.want) {
			t.Errorf("%s: status %d, %q, want an error about %s", tt.args, status, stderr, tt.want)
		}
	}
}
