package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"ibverbx/internal/perf/measure"
)

// TestRXETrafficClass: rxe devices send every packet of a VirtualQP with the traffic class of the flags, including
// with package reliable. The RoCE v2 hop limit is ignored: the kernel takes it from the route.
func TestRXETrafficClass(t *testing.T) {
	if os.Getenv("IBVERBX_TEST_RXE") != "1" {
		t.Skip("needs the kernel's rxe devices: run test/rxe/all")
	}
	for _, transport := range []string{"rc", "uc"} {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.ETH_P_ALL>>8|unix.ETH_P_ALL<<8&0xff00)
		if err != nil {
			t.Fatalf("Socket: got %v, want no error", err)
		}
		defer func() { _ = unix.Close(fd) }()
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20)
		args := "perf -s 4K -n 50 --provider rdmacore --devices rxe0,rxe1 --rails 1 -q 2 --check --json --tclass 104 --hop-limit 9 --ack-timeout 16 --retry 5 --rnr-timer 14 --transport "
		status, out, stderr := command(t.Context(), strings.Fields(args+transport)...)
		var r measure.Report
		if err := json.Unmarshal([]byte(out), &r); status != exitOK || err != nil || len(r.Settings) != 5 {
			t.Fatalf("perf: status %d, %v, %s, settings %v", status, err, stderr, r.Settings)
		}
		marked, others := 0, []byte{}
		for b := make([]byte, 1<<16); ; {
			n, _, err := unix.Recvfrom(fd, b, 0)
			if err != nil {
				break // end of the capture
			}
			const udp, rocePort = 17, 4791
			if n < 28 || b[0] != 0x45 || b[9] != udp || int(b[22])<<8|int(b[23]) != rocePort {
				continue
			}
			if b[1] == 104 {
				marked++
			} else {
				others = append(others, b[1])
			}
		}
		if marked < 50 || len(others) > 0 {
			t.Errorf("transport %s: %d RoCE packets have class 104, and others %d, want class 104 of all", transport, marked, others)
		}
	}
}
