package roce_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"os"
	"strings"
	"testing"

	"ibverbx/internal/roce"
)

// golden is a captured packet.
type golden struct {
	src, dst netip.AddrPort
	id       uint16
	datagram []byte
}

// parseGolden parses a packet, starting with its IP header.
func parseGolden(t testing.TB, text string) (g golden) {
	t.Helper()
	b, err := hex.DecodeString(text)
	if err != nil {
		t.Fatalf("%q is not hex: %v", text, err)
	}
	var from, to netip.Addr
	if b[0]>>4 == 4 {
		from, to = netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
		g.id, b = binary.BigEndian.Uint16(b[4:]), b[20:]
	} else {
		from, to = netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
		b = b[40:]
	}
	g.src = netip.AddrPortFrom(from, binary.BigEndian.Uint16(b))
	g.dst = netip.AddrPortFrom(to, binary.BigEndian.Uint16(b[2:]))
	g.datagram = b[8:]
	return g
}

// kernelPackets returns the kernel's packets from testdata.
func kernelPackets(t testing.TB) (packets []golden) {
	t.Helper()
	text, err := os.ReadFile("testdata/rxe.txt")
	if err != nil {
		t.Fatalf("read the packets of the kernel: %v", err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); f[0] != "#" {
			packets = append(packets, parseGolden(t, f[2]))
		}
	}
	return packets
}

// TestKernelPackets decodes packets sent by the kernel, verifies their ICRC, and encodes the same
// bytes.
func TestKernelPackets(t *testing.T) {
	seen := map[bool]map[uint8]bool{false: {}, true: {}}
	var e roce.Explainer
	for _, g := range kernelPackets(t) {
		checkGolden(t, g, &e, roce.OK)
		seen[g.src.Addr().Is4()][g.datagram[0]] = true
	}
	for op := range 256 {
		exists := roce.HeaderLen(uint8(op)) > 0 && uint8(op) != roce.CNP
		if seen[true][uint8(op)] != exists || seen[false][uint8(op)] != exists {
			t.Errorf("opcode %#x: in testdata over IPv4 %v and IPv6 %v, want %v", op, seen[true][uint8(op)], seen[false][uint8(op)], exists)
		}
	}
}

// TestHardwareCNP does the same with a congestion notification from a hardware NIC. The ICRC
// excludes its ToS, TTL and BECN.
func TestHardwareCNP(t *testing.T) {
	g := parseGolden(t, "4589003c98c64000201169271616160816161607"+"dbae12b700280000"+
		"8100ffff400000d200000000"+"00000000000000000000000000000000"+"dafc1bef")
	var e roce.Explainer
	h := checkGolden(t, g, &e, roce.Congestion)
	if !h.BECN || h.DestQPN != 0xd2 {
		t.Errorf("BECN %v for QP %#x, want true for 0xd2", h.BECN, h.DestQPN)
	}
}

func checkGolden(t *testing.T, g golden, e *roce.Explainer, want roce.Reason) (h roce.Header) {
	t.Helper()
	payload, reason := h.Decode(g.datagram)
	if reason != want {
		t.Fatalf("Decode = %v, want %v: %x", reason, want, g.datagram)
	}
	flow := newFlow(t, g.src, g.dst)
	if got, want := flow.ICRC(g.datagram, g.id), roce.Received(g.datagram); got != want {
		t.Fatalf("ICRC = %#x, want %#x: %x", got, want, g.datagram)
	}
	if id, ok := flow.Check(g.datagram, e); !ok || id != g.id {
		t.Fatalf("Check = %d, %v, want %d, true: %x", id, ok, g.id, g.datagram)
	}
	again := make([]byte, len(g.datagram))
	n := h.Encode(again, len(payload))
	copy(again[n:], payload)
	flow.Seal(again, g.id)
	if !bytes.Equal(again, g.datagram) {
		t.Fatalf("encoded again:\n%x, want\n%x", again, g.datagram)
	}
	return h
}

// TestLayout pins the bytes of headers shown in the specification.
func TestLayout(t *testing.T) {
	tests := []struct {
		name    string
		h       roce.Header
		payload int
		want    string
	}{
		{
			"BTH",
			roce.Header{Opcode: roce.OpSendOnly, Solicited: true, PKey: 0x8001, DestQPN: 0x123456, PSN: 0xabcdef, AckReq: true},
			5, "04b08001" + "00123456" + "80abcdef",
		},
		{
			"MigReq, FECN and BECN",
			roce.Header{Opcode: roce.UC | roce.OpSendOnly, Migrated: true, PKey: 0xffff, FECN: true, BECN: true, DestQPN: 1, PSN: 2},
			0, "2440ffff" + "c0000001" + "00000002",
		},
		{
			"DETH and ImmDt",
			roce.Header{Opcode: roce.UD | roce.OpSendOnlyImm, PKey: 0xffff, DestQPN: 1, QKey: 0x80010203, SrcQPN: 0x445566, Imm: 0x778899aa},
			2, "6520ffff" + "00000001" + "00000000" + "80010203" + "00445566" + "778899aa",
		},
		{
			"RETH and ImmDt",
			roce.Header{Opcode: roce.OpWriteOnlyImm, PKey: 0xffff, VA: 0x0102030405060708, RKey: 0x090a0b0c, DMALen: 0x0d0e0f10, Imm: 0x11121314},
			3, "0b10ffff" + "00000000" + "00000000" + "0102030405060708" + "090a0b0c" + "0d0e0f10" + "11121314",
		},
		{
			"AtomicETH",
			roce.Header{Opcode: roce.OpCompareSwap, PKey: 0xffff, VA: 0x0102030405060708, RKey: 0x090a0b0c, SwapAdd: 0x1111111122222222, Compare: 0x3333333344444444},
			0, "1300ffff" + "00000000" + "00000000" + "0102030405060708" + "090a0b0c" + "1111111122222222" + "3333333344444444",
		},
		{
			"AETH",
			roce.Header{Opcode: roce.OpAck, PKey: 0xffff, Syndrome: 0x61, MSN: 0x010203},
			0, "1100ffff" + "00000000" + "00000000" + "61010203",
		},
		{
			"AETH and AtomicAckETH",
			roce.Header{Opcode: roce.OpAtomicAck, PKey: 0xffff, Syndrome: 0x1f, MSN: 1, Original: 0x0102030405060708},
			0, "1200ffff" + "00000000" + "00000000" + "1f000001" + "0102030405060708",
		},
	}
	for _, tt := range tests {
		b := make([]byte, roce.MaxHeader)
		n := tt.h.Encode(b, tt.payload)
		if got := hex.EncodeToString(b[:n]); got != tt.want {
			t.Errorf("%s: Encode = %s, want %s", tt.name, got, tt.want)
		}
	}
}
