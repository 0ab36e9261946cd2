package verbs_test

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"ibverbx/verbs"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A GRH: version 6, traffic class 0x61, flow label 0x23456, payload length 0x0120, next
// header 0x1b (IBA), hop limit 63, then source and destination.
const grhIPv6 = `
	66123456 0120 1b 3f
	fe80000000000000 0000000000000001
	20010db800000000 00000000000000fe`

// An IPv4 header in the second half of the area: TOS 0x60, TTL 62, UDP, 192.0.2.1 to
// 192.0.2.99, correct checksum. The first half is undefined.
const grhIPv4 = `
	66deadbeef66deadbeef66deadbeef66deadbeef
	45 60 0048 1234 4000 3e 11 a5ac c0000201 c0000263`

func TestParseGRH(t *testing.T) {
	addr := func(s string) verbs.GID { return verbs.GIDFromAddr(netip.MustParseAddr(s)) }
	tests := []struct {
		name string
		area string
		want verbs.GRH
	}{
		{"IPv6", grhIPv6, verbs.GRH{SGID: addr("fe80::1"), DGID: addr("2001:db8::fe"), FlowLabel: 0x23456, TrafficClass: 0x61, HopLimit: 63}},
		{"IPv4", grhIPv4, verbs.GRH{SGID: addr("192.0.2.1"), DGID: addr("192.0.2.99"), TrafficClass: 0x60, HopLimit: 62}},
		// A GID that starts like an IPv4 header, in the header's position.
		{
			"IPv6 that looks like IPv4", "60000000 0000 1b 40  00000000000000000000000045000028  20010db8000000000000000000000001",
			verbs.GRH{SGID: addr("::4500:28"), DGID: addr("2001:db8::1"), HopLimit: 64},
		},
	}
	for _, tt := range tests {
		b := unhex(t, tt.area)
		// Bytes after the area are payload.
		got, err := verbs.ParseGRH(append(b, "payload"...))
		if err != nil || got != tt.want {
			t.Errorf("%s: ParseGRH = %+v, %v, want %+v", tt.name, got, err, tt.want)
		}
	}
}

func TestParseGRHErrors(t *testing.T) {
	ipv4 := unhex(t, grhIPv4)
	ipv4[0] = 0   // not version 6
	ipv4[30] ^= 1 // an invalid IPv4 checksum
	options := unhex(t, grhIPv4)
	options[0] = 0
	options[20] = 0x46 // a header with options does not fit the area
	for name, b := range map[string][]byte{
		"nil":          nil,
		"short":        unhex(t, grhIPv6)[:verbs.GRHLen-1],
		"zero":         make([]byte, verbs.GRHLen),
		"bad checksum": ipv4,
		"IPv4 options": options,
	} {
		if g, err := verbs.ParseGRH(b); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%s: ParseGRH = %+v, %v, want %v", name, g, err, verbs.ErrInvalid)
		}
	}
}

func TestGRHReply(t *testing.T) {
	g, err := verbs.ParseGRH(unhex(t, grhIPv6))
	if err != nil {
		t.Fatal(err)
	}
	want := verbs.AHAttr{DGID: g.SGID, SGIDIndex: 3, FlowLabel: 0x23456, HopLimit: 64, TrafficClass: 0x61, Port: 2}
	if got := g.Reply(2, 3); got != want {
		t.Errorf("Reply = %+v, want %+v", got, want)
	}
}

// buildGRH is the inverse of ParseGRH: it encodes g.
func buildGRH(g verbs.GRH, ipv4 bool) []byte {
	b := make([]byte, verbs.GRHLen)
	if !ipv4 {
		binary.BigEndian.PutUint32(b, 6<<28|uint32(g.TrafficClass)<<20|g.FlowLabel)
		b[7] = g.HopLimit
		copy(b[8:], g.SGID[:])
		copy(b[24:], g.DGID[:])
		return b
	}
	h := b[20:]
	h[0], h[1], h[8] = 0x45, g.TrafficClass, g.HopLimit
	copy(h[12:], g.SGID[12:])
	copy(h[16:], g.DGID[12:])
	var sum uint32
	for i := 0; i < len(h); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(h[i:]))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(h[10:], ^uint16(sum))
	return b
}

// ParseGRH never panics on a peer's bytes, and a parsed header survives a round trip.
func FuzzParseGRH(f *testing.F) {
	f.Add(unhex(f, grhIPv6))
	f.Add(unhex(f, grhIPv4))
	f.Add([]byte{0x60})
	f.Fuzz(func(t *testing.T, b []byte) {
		g, err := verbs.ParseGRH(b)
		if err != nil {
			if g != (verbs.GRH{}) || !errors.Is(err, verbs.ErrInvalid) {
				t.Fatalf("ParseGRH = %+v, %v", g, err)
			}
			return
		}
		if g.FlowLabel >= 1<<20 {
			t.Fatalf("flow label %#x has more than 20 bits", g.FlowLabel)
		}
		ipv4 := b[20] == 0x45 && g.SGID.Addr().Is4() && g.DGID.Addr().Is4()
		again, err := verbs.ParseGRH(buildGRH(g, ipv4))
		if err != nil || again != g {
			t.Fatalf("read %+v, then %+v, %v", g, again, err)
		}
	})
}
