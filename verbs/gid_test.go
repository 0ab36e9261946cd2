package verbs_test

import (
	"net/netip"
	"testing"

	"ibverbx/verbs"
)

func TestGID(t *testing.T) {
	tests := []struct {
		addr string
		gid  verbs.GID
		text string
	}{
		{"10.0.0.1", verbs.GID{10: 0xff, 11: 0xff, 12: 10, 15: 1}, "::ffff:10.0.0.1"},
		{"fe80::1", verbs.GID{0: 0xfe, 1: 0x80, 15: 1}, "fe80::1"},
		{"2001:db8::42:0:1", verbs.GID{0: 0x20, 1: 0x01, 2: 0x0d, 3: 0xb8, 11: 0x42, 15: 1}, "2001:db8::42:0:1"},
	}
	for _, tt := range tests {
		addr := netip.MustParseAddr(tt.addr)
		gid := verbs.GIDFromAddr(addr)
		if gid != tt.gid {
			t.Errorf("GIDFromAddr(%s) = %x, want %x", addr, gid[:], tt.gid[:])
		}
		if gid.Addr() != addr {
			t.Errorf("GID %s: Addr = %s, want %s", gid, gid.Addr(), addr)
		}
		if gid.String() != tt.text {
			t.Errorf("GID of %s prints as %s, want %s", addr, gid, tt.text)
		}
		if gid.IsZero() {
			t.Errorf("GID %s is zero", gid)
		}
	}
	if !(verbs.GID{}).IsZero() {
		t.Error("the zero GID is not zero")
	}
	if got := (verbs.GID{}).String(); got != "::" {
		t.Errorf("the zero GID prints as %q", got)
	}
}

func TestGUIDString(t *testing.T) {
	tests := map[verbs.GUID]string{
		0:                  "0000:0000:0000:0000",
		0x0002c90300a1b2c3: "0002:c903:00a1:b2c3",
		0xffffffffffffffff: "ffff:ffff:ffff:ffff",
	}
	for guid, want := range tests {
		if got := guid.String(); got != want {
			t.Errorf("GUID(%#x).String() = %q, want %q", uint64(guid), got, want)
		}
	}
}

func TestMTU(t *testing.T) {
	for code, bytes := range map[verbs.MTU]int{1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096, 0: 0, 6: 0, 255: 0} {
		if got := code.Bytes(); got != bytes {
			t.Errorf("MTU(%d).Bytes() = %d, want %d", uint8(code), got, bytes)
		}
		if bytes == 0 {
			continue
		}
		if got, err := verbs.MTUOf(bytes); err != nil || got != code {
			t.Errorf("MTUOf(%d) = %d, %v, want %d", bytes, uint8(got), err, uint8(code))
		}
	}
	for _, bytes := range []int{-1, 0, 128, 255, 257, 1500, 8192} {
		if got, err := verbs.MTUOf(bytes); err == nil {
			t.Errorf("MTUOf(%d) = %v, want an error", bytes, got)
		}
	}
	if got := verbs.MTU4096.String(); got != "4096 (5)" {
		t.Errorf("MTU4096 prints as %q", got)
	}
}
