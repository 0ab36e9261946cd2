package peer

import (
	"encoding/binary"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"

	"ibverbx"
	"ibverbx/bootstrap"
	"ibverbx/verbs"
)

// allowedAddrs determines the addresses allowed for a peer's NICs.
type allowedAddrs struct {
	// peer is the peer's address on the connection.
	peer netip.Addr
	// local are this host's addresses with their networks.
	local []netip.Prefix
	// more are the networks of Config.PeerNetworks and the addresses in the peer's certificate.
	more []netip.Prefix
}

func (c *Config) allowedAddrs(p bootstrap.Peer) (v allowedAddrs, err error) {
	ap, err := netip.ParseAddrPort(p.Addr.String())
	if err != nil {
		return v, fmt.Errorf("address of the peer: %w", err)
	}
	v.peer = ap.Addr().Unmap().WithZone("")
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return v, fmt.Errorf("addresses of this host: %w", err)
	}
	for _, a := range addrs {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil {
			v.local = append(v.local, prefix)
		}
	}
	v.more = slices.Clone(c.PeerNetworks)
	if p.Certificate != nil {
		for _, ip := range p.Certificate.IPAddresses {
			if a, ok := netip.AddrFromSlice(ip); ok {
				v.more = append(v.more, netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()))
			}
		}
	}
	return v, nil
}

// isLocal reports whether an address belongs to this host.
func (v *allowedAddrs) isLocal(a netip.Addr) bool {
	return a.IsLoopback() || slices.ContainsFunc(v.local, func(p netip.Prefix) bool { return p.Addr() == a })
}

// check rejects broadcast and multicast addresses, and addresses unrelated to the peer: packets would hit an uninvolved host.
func (v *allowedAddrs) check(a netip.Addr) error {
	holds := func(p netip.Prefix) bool { return p.Masked().Contains(a) }
	switch {
	case a.IsUnspecified(), a.IsMulticast(), a == netip.AddrFrom4([4]byte{255, 255, 255, 255}),
		slices.ContainsFunc(v.local, func(p netip.Prefix) bool { return broadcast(p, a) }):
		return verbs.Invalidf("%v is not the address of one host", a)
	case a == v.peer, slices.ContainsFunc(v.more, holds):
		return nil
	case v.isLocal(a) != v.isLocal(v.peer):
		return verbs.Invalidf("%v and the peer's address %v are not on the same host", a, v.peer)
	case v.isLocal(a), slices.ContainsFunc(v.local, holds):
		return nil
	}
	return verbs.Invalidf("%v is unrelated to the peer: it is not the peer's address %v, not in its certificate and on no network of this host: "+
		"add its network to Config.PeerNetworks if the peer has such NICs", a, v.peer)
}

// broadcast reports whether a is the broadcast address of an IPv4 network. Networks with 31 or 32 bits do not have one (RFC 3021).
func broadcast(p netip.Prefix, a netip.Addr) bool {
	if !p.Addr().Is4() || p.Bits() > 30 {
		return false
	}
	b := p.Masked().Addr().As4()
	last := binary.BigEndian.Uint32(b[:]) | math.MaxUint32>>p.Bits()
	return a == netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, last)))
}

// addressesPeer reports whether a local rail sends packets to addresses that the peer chooses. Rails beside shared memory do, those that are
// ends of a softnic.ShmLink do not.
func (s *Session) addressesPeer(rail *OfferRail) bool {
	return rail.Network == "roce" && (s.Link != LinkShm || len(s.shmConns) > 0)
}

// checkCard checks the addresses of the peer's lanes that face an Ethernet rail of this side.
func (s *Session) checkCard(c *Config, rails []OfferRail, mine, theirs *ibverbx.Card) error {
	v, err := c.allowedAddrs(s.Conn.Peer())
	if err != nil {
		return err
	}
	for i := range theirs.Lanes {
		if i >= len(mine.Lanes) || theirs.Lanes[i].Absent || !s.addressesPeer(&rails[mine.Lanes[i].Rail]) {
			continue // Connect refuses another number of lanes, and checkGID checks an absent one
		}
		if err := v.check(theirs.Lanes[i].GID.Addr().WithZone("")); err != nil {
			return fmt.Errorf("the peer's card: lane %d: %w", i, err)
		}
	}
	return nil
}

// checkGID returns the check of an address that no lane has in the peer's card: its device had failed, or the rail was without a lane. rails are
// the local rails.
func (s *Session) checkGID(c *Config, rails []OfferRail) func(rail int, gid verbs.GID) error {
	return func(rail int, gid verbs.GID) error {
		if !s.addressesPeer(&rails[rail]) {
			return nil
		}
		v, err := c.allowedAddrs(s.Conn.Peer())
		if err != nil {
			return err
		}
		return v.check(gid.Addr().WithZone(""))
	}
}
