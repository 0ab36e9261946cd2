package verbs

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// GID is a global identifier: a port's 128-bit address. The zero GID is invalid.
type GID [16]byte

// GIDFromAddr returns the GID of an IP address; IPv4 addresses are mapped into IPv6
// (::ffff:a.b.c.d), as RoCE v2 does.
func GIDFromAddr(a netip.Addr) GID { return GID(a.As16()) }

// Addr returns the GID as an IP address. IPv4-mapped addresses are unmapped.
func (g GID) Addr() netip.Addr { return netip.AddrFrom16(g).Unmap() }

// IsZero reports whether g is the zero GID.
func (g GID) IsZero() bool { return g == GID{} }

// String formats g as ibv_devinfo prints RoCE v2 GIDs: as an IPv6 address, IPv4-mapped addresses as
// ::ffff:a.b.c.d.
func (g GID) String() string { return netip.AddrFrom16(g).String() }

// MarshalText returns the same as String.
func (g GID) MarshalText() ([]byte, error) { return []byte(g.String()), nil }

// UnmarshalText parses the output of MarshalText. Anything else returns ErrInvalid.
func (g *GID) UnmarshalText(b []byte) error {
	a, err := netip.ParseAddr(string(b))
	if err != nil || a.Zone() != "" {
		return Invalidf("GID %q is not an address", b)
	}
	*g = GIDFromAddr(a)
	return nil
}

// GIDType is the protocol of a GID table entry.
type GIDType uint8

// GID types, numbered as in enum ibv_gid_type.
const (
	GIDTypeIB     GIDType = 0
	GIDTypeRoCEv1 GIDType = 1
	GIDTypeRoCEv2 GIDType = 2
)

// String returns the name that ibv_devinfo prints.
func (t GIDType) String() string {
	return nameOf(t, "GIDType", []string{GIDTypeIB: "IB", GIDTypeRoCEv1: "RoCE v1", GIDTypeRoCEv2: "RoCE v2"})
}

// GIDEntry is one row of a port's GID table.
type GIDEntry struct {
	GID   GID     // the address
	Index int     // row in the table
	Type  GIDType // protocol
	// NetDev is the name of the entry's network interface, or empty.
	NetDev string
}

// GUID is a 64-bit EUI identifier of a node or port, in host order.
type GUID uint64

// String returns the GUID as ibv_devinfo prints it: four groups of four hex digits.
func (g GUID) String() string {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], uint64(g))
	return fmt.Sprintf("%02x%02x:%02x%02x:%02x%02x:%02x%02x", b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7])
}
