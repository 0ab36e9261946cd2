package softnic

import (
	"encoding/binary"

	"ibverbx/internal/roce"
	"ibverbx/internal/udp"
	"ibverbx/verbs"
)

// gidWithPort begins a GID that names a NIC by its IPv4 address and its UDP port. It is an address of IPv6 that is never routed (RFC 4193),
// and it ends like the GID of the address alone:
//
//	fd69:6276:7800:PORT:0:ffff:a.b.c.d
var gidWithPort = [6]byte{0xfd, 'i', 'b', 'v', 'x', 0}

// portGID adds a port to the GID of an IPv4 address. A GID of IPv6 has no room for it, and a group has no port of its own: they are
// returned as they are.
func portGID(g verbs.GID, port uint16) verbs.GID {
	if a := g.Addr(); a.Is4() && !a.IsMulticast() {
		copy(g[:], gidWithPort[:])
		binary.BigEndian.PutUint16(g[6:], port)
	}
	return g
}

// splitGID returns the GID of the address in a GID with a port, and the port. Other GIDs have port 0 and are returned as they are.
func splitGID(g verbs.GID) (verbs.GID, uint16) {
	plain := g
	clear(plain[:8])
	if [6]byte(g[:]) != gidWithPort || !plain.Addr().Is4() {
		return g, 0
	}
	return plain, binary.BigEndian.Uint16(g[6:])
}

// portGIDs reports whether programs see GIDs with ports.
func (n *NIC) portGIDs() bool { return n.core.wire != nil && n.core.wire.link.cfg.PortGIDs }

// shown returns a path of a received packet with the GIDs that programs see.
func (p *path) shown(n *NIC) path {
	to, port := *p, p.port
	if port >= udp.FirstSourcePort {
		port = roce.Port // see udpPort.back
	}
	to.sgid, to.dgid = portGID(p.sgid, port), portGID(p.dgid, n.udp.conn.Addr().Port())
	return to
}
