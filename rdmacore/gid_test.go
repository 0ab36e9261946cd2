package rdmacore_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"ibverbx/rdmacore"
	"ibverbx/verbs"
)

func row(index int, typ verbs.GIDType, addr string) verbs.GIDEntry {
	return verbs.GIDEntry{GID: verbs.GIDFromAddr(netip.MustParseAddr(addr)), Index: index, Type: typ}
}

func TestChooseGID(t *testing.T) {
	const v1, v2, ib = verbs.GIDTypeRoCEv1, verbs.GIDTypeRoCEv2, verbs.GIDTypeIB
	full := []verbs.GIDEntry{
		row(0, v1, "fe80::1"), row(1, v2, "fe80::1"), row(2, v1, "10.0.0.1"), row(3, v2, "10.0.0.1"),
		row(4, v1, "2001:db8::1"), row(5, v2, "2001:db8::1"), row(6, v2, "10.0.0.2"),
	}
	tests := []struct {
		name   string
		link   verbs.LinkLayer
		rows   []verbs.GIDEntry
		wanted string
		want   int
		why    string
		err    error
	}{
		{"RoCE v2 IPv4 first", verbs.LinkLayerEthernet, full, "", 3, "RoCE v2 over a routable IPv4", nil},
		{"the order of rows does not count", verbs.LinkLayerEthernet, []verbs.GIDEntry{full[6], full[5], full[3]}, "", 3, "IPv4", nil},
		{"then RoCE v2 IPv6", verbs.LinkLayerEthernet, []verbs.GIDEntry{full[0], full[1], full[2], full[5]}, "", 5, "RoCE v2 over a routable IPv6", nil},
		{"RoCE v1 before link-local", verbs.LinkLayerEthernet, full[:3], "", 2, "RoCE v1 with an IPv4", nil},
		{"RoCE v1 IPv6 before link-local", verbs.LinkLayerEthernet, []verbs.GIDEntry{full[0], full[1], full[4]}, "", 4, "RoCE v1 with an IPv6", nil},
		{"link-local last", verbs.LinkLayerEthernet, full[:2], "", 1, "RoCE v2 over a link-local", nil},
		{"RoCE v1 link-local", verbs.LinkLayerEthernet, full[:1], "", 0, "RoCE v1 with a link-local", nil},
		{"IPv4 link-local is link-local", verbs.LinkLayerEthernet, []verbs.GIDEntry{row(0, v2, "169.254.1.1"), row(1, v2, "2001:db8::1")}, "", 1, "IPv6", nil},
		{"empty rows do not count", verbs.LinkLayerEthernet, []verbs.GIDEntry{{Index: 0, Type: v2}, full[1]}, "", 1, "link-local", nil},
		{"Ethernet without types", verbs.LinkLayerEthernet, []verbs.GIDEntry{row(2, ib, "10.0.0.1")}, "", 2, "only kind", nil},
		{"InfiniBand takes the first", verbs.LinkLayerInfiniBand, []verbs.GIDEntry{row(1, ib, "fe80::2"), row(0, ib, "fe80::1")}, "", 0, "InfiniBand", nil},
		{"wanted", verbs.LinkLayerEthernet, full, "fe80::1", 1, "asked for", nil},
		{"wanted in RoCE v2", verbs.LinkLayerEthernet, full, "10.0.0.1", 3, "asked for", nil},
		{"wanted and not there", verbs.LinkLayerEthernet, full, "10.9.9.9", 0, "", verbs.ErrInvalid},
		{"no rows", verbs.LinkLayerEthernet, nil, "", 0, "", verbs.ErrNotFound},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var wanted verbs.GID
			if tt.wanted != "" {
				wanted = verbs.GIDFromAddr(netip.MustParseAddr(tt.wanted))
			}
			got, err := rdmacore.ChooseGID(tt.link, tt.rows, wanted)
			if !errors.Is(err, tt.err) || (err == nil) != (tt.err == nil) {
				t.Fatalf("ChooseGID = %v, want an error that wraps %v", err, tt.err)
			}
			if err != nil {
				return
			}
			if got.Entry.Index != tt.want || !strings.Contains(got.Why, tt.why) {
				t.Errorf("ChooseGID = row %d because %q, want row %d because %q", got.Entry.Index, got.Why, tt.want, tt.why)
			}
		})
	}
}
