package pcap_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ibverbx/internal/pcap"
	"ibverbx/internal/roce"
)

// columns are the fields that tshark prints for each packet. The last ones are its complaints.
var columns = []string{
	"frame.time_epoch", "frame.interface_name", "frame.interface_description", "frame.protocols",
	"ip.id", "udp.srcport", "udp.dstport",
	"infiniband.bth.opcode", "infiniband.bth.se", "infiniband.bth.a", "infiniband.bth.padcnt", "infiniband.bth.p_key",
	"infiniband.bth.destqp", "infiniband.bth.psn",
	"infiniband.reth.va", "infiniband.reth.r_key", "infiniband.reth.dmalen",
	"infiniband.deth.q_key", "infiniband.deth.srcqp",
	"infiniband.atomiceth.swapdt", "infiniband.atomiceth.cmpdt",
	"infiniband.aeth.syndrome", "infiniband.aeth.msn", "infiniband.atomicacketh.origremdt",
	"infiniband.immdt", "infiniband.invariant.crc",
	"ip.checksum.status", "udp.checksum.status", "_ws.expert.message", "_ws.malformed",
}

// TestTshark writes one packet of each opcode over IPv4 and IPv6 and decodes them with tshark. It
// must recognize RoCE, show the written fields, and not complain.
func TestTshark(t *testing.T) {
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		if os.Getenv("IBVERBX_CI") == "1" {
			t.Fatalf("LookPath = %v, want tshark: install the Debian package tshark", err)
		}
		t.Skip("needs tshark: install the Debian package tshark")
	}
	name := filepath.Join(t.TempDir(), "out.pcapng")
	w, err := pcap.Create(name, pcap.Config{})
	must(t, err)
	nic := w.Interface("soft0", "10.0.0.1 port 4791")
	var want []string
	for _, ends := range [][2]netip.AddrPort{{from4, to4}, {from6, to6}} {
		for op := range 256 {
			if roce.HeaderLen(uint8(op)) > 0 {
				want = append(want, writePacket(t, nic, uint8(op), len(want), ends[0], ends[1]))
			}
		}
	}
	must(t, w.Close())
	args := []string{
		"-n", "-r", name, "-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE",
		"-T", "fields", "-E", "separator=|", "-E", "occurrence=f",
	}
	for _, c := range columns {
		args = append(args, "-e", c)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var complaints strings.Builder
	cmd := exec.CommandContext(ctx, tshark, args...)
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("tshark = %v, want it to read the file: %s", err, complaints.String())
	}
	got := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	if len(got) != len(want) {
		t.Fatalf("tshark saw %d packets, want %d", len(got), len(want))
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("packet %d:\n%s, want\n%s\nof %s", i, got[i], want[i], strings.Join(columns, "|"))
		}
	}
}

// writePacket writes packet number i and returns the line that tshark should print.
func writePacket(t *testing.T, nic *pcap.Interface, op uint8, i int, src, dst netip.AddrPort) string {
	t.Helper()
	h := roce.Header{
		Opcode: op, Solicited: i%2 == 0, AckReq: i%3 == 0, PKey: 0xffff, DestQPN: uint32(0x100 + i), PSN: roce.PSN(0xfffff0 + i),
		QKey: 0x11111111, SrcQPN: 0x654321, VA: 0x7f0000001000, RKey: 0x1234, DMALen: 300, SwapAdd: 17, Compare: 0x0102030405060708,
		Syndrome: 0x1f, MSN: uint32(i), Original: 0x1112131415161718, Imm: 0xdeadbeef, BECN: op == roce.CNP,
	}
	h.PSN &= 0xffffff
	b := make([]byte, roce.MaxDatagram)
	payload := payloadFor(op)
	n := roce.DatagramLen(op, payload)
	for k := range b[:n] {
		b[k] = byte(k)
	}
	h.Encode(b, payload)
	clear(b[n-4-roce.Pad(payload) : n])
	flow, err := roce.NewFlow(src, dst)
	must(t, err)
	id := uint16(i)
	flow.Seal(b[:n], id)
	nic.Packet(int64(i)*1e9+int64(op), src, dst, id, 0, 64, b[:12], b[12:n])

	line := []string{
		fmt.Sprintf("%d.%09d", i, op), "soft0", "10.0.0.1 port 4791", protocols(src, payload),
		"", fmt.Sprint(src.Port()), fmt.Sprint(dst.Port()),
		fmt.Sprint(op), boolean(h.Solicited), boolean(h.AckReq), fmt.Sprint(roce.Pad(payload)), "65535",
		fmt.Sprintf("0x%06x", h.DestQPN), fmt.Sprint(h.PSN),
	}
	if src.Addr().Is4() {
		line[4] = fmt.Sprintf("0x%04x", id)
	}
	line = append(line, extended(h)...)
	if op == roce.CNP {
		line = append(line, "") // tshark leaves it empty
	} else {
		line = append(line, fmt.Sprintf("0x%02x%02x%02x%02x", b[n-4], b[n-3], b[n-2], b[n-1]))
	}
	if src.Addr().Is4() {
		line = append(line, "1", "3", "", "") // good; none
	} else {
		line = append(line, "", "1", "", "")
	}
	return strings.Join(line, "|")
}

// payloadFor returns a payload length: a whole MTU for FIRST and MIDDLE, otherwise one that needs
// padding, or 0.
func payloadFor(op uint8) int {
	var h roce.Header
	for _, n := range []int{301, 256} {
		b := make([]byte, roce.DatagramLen(op, n))
		h = roce.Header{Opcode: op}
		h.Encode(b, n)
		if _, r := h.Decode(b); r == roce.OK {
			return n
		}
	}
	return 0
}

func boolean(v bool) string {
	if v {
		return "1"
	}
	return "0"
}

func protocols(src netip.AddrPort, payload int) string {
	p := "raw:ipv6:udp:infiniband"
	if src.Addr().Is4() {
		p = "raw:ip:udp:infiniband"
	}
	if payload > 0 {
		p += ":data"
	}
	return p
}

// extended returns the columns of the extended headers. tshark uses the names of the RETH fields
// for the address and key of an AtomicETH.
func extended(h roce.Header) []string {
	c := make([]string, 11)
	op := h.Opcode & roce.OperationMask
	if h.Opcode == roce.CNP {
		return c
	}
	switch op {
	case roce.OpWriteFirst, roce.OpWriteOnly, roce.OpWriteOnlyImm, roce.OpReadRequest:
		c[0], c[1], c[2] = fmt.Sprintf("0x%016x", h.VA), fmt.Sprintf("0x%08x", h.RKey), fmt.Sprint(h.DMALen)
	case roce.OpCompareSwap, roce.OpFetchAdd:
		c[0], c[1] = fmt.Sprintf("0x%016x", h.VA), fmt.Sprintf("0x%08x", h.RKey)
		c[5], c[6] = fmt.Sprint(h.SwapAdd), fmt.Sprint(h.Compare)
	case roce.OpAck, roce.OpAtomicAck, roce.OpReadResponseFirst, roce.OpReadResponseLast, roce.OpReadResponseOnly:
		c[7], c[8] = fmt.Sprint(h.Syndrome), fmt.Sprint(h.MSN)
	}
	if h.Opcode&roce.TransportMask == roce.UD {
		c[3], c[4] = fmt.Sprintf("0x%016x", h.QKey), fmt.Sprintf("0x%08x", h.SrcQPN)
	}
	switch op {
	case roce.OpAtomicAck:
		c[9] = fmt.Sprint(h.Original)
	case roce.OpSendLastImm, roce.OpSendOnlyImm, roce.OpWriteLastImm, roce.OpWriteOnlyImm:
		c[10] = fmt.Sprintf("%08x", h.Imm)
	}
	return c
}
