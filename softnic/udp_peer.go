package softnic

import (
	"encoding/binary"
	"net/netip"

	"ibverbx/internal/roce"
	"ibverbx/internal/seal"
	"ibverbx/internal/udp"
	"ibverbx/verbs"
)

// Endpoint.Extra identifies a QP on a UDPLink as one of a softnic and describes its NIC to senders:
//
//	0     1     2     3     4     5     6     7     8
//	"s"   "n"   version flags  socket buffer, KiB   source ports, 16 bits each
//
// Flags: bit 0: the receiver checks each datagram of a coalesced run. Bit 1: it finds the end of a packet in a
// padded datagram (roce.Trim). Bit 2: the NIC's UDP source ports follow. Bit 3: the QP is sealed, and a greeting
// replaces the ports (docs/wire.md). Bit 4: the receiver accepts packets whose ICRC covers only the headers from
// NICs on its host, bit 5: from any NIC. A UDP port other than 4791 is the endpoint's LID, which RoCE does not
// otherwise use. This puts the port into every address vector.
const (
	extraLen     = 8
	extraVersion = 1
	extraRuns    = 1 << 0
	extraFill    = 1 << 1
	extraPorts   = 1 << 2
	extraSealed  = 1 << 3
	extraOnHost  = 1 << 4
	extraAnyHost = 1 << 5
	// maxPorts limits the source ports of a peer. A NIC sends from maxSockets and from its receiving port.
	maxPorts = maxSockets + 1
)

// udpAddr is the address and UDP port of a NIC's socket.
type udpAddr struct {
	gid  verbs.GID
	port uint16
}

func (a udpAddr) addrPort() netip.AddrPort { return netip.AddrPortFrom(a.gid.Addr(), a.port) }

// udpPeer describes a softnic that has sent its endpoint.
type udpPeer struct {
	// runs is set if the peer checks each datagram of a coalesced run.
	runs bool
	// fill is set if the peer finds the end of a packet in a padded datagram.
	fill bool
	// onHost is set if the peer accepts packets whose ICRC covers only the headers from NICs on its host, anyHost if it
	// accepts them from any NIC.
	onHost, anyHost bool
	// buffer is the size of the peer's socket buffer in bytes.
	buffer uint32
	// ports holds the peer's source ports, nil if it has not announced them.
	ports []uint16
	// budget is shared by all QPs that send to the peer.
	budget budget
}

// udpTarget is the destination of packets and the marks of their IP headers.
type udpTarget struct {
	udpAddr
	marks udp.Marks
}

// udpRoute is the UDP destination of a path's packets and the socket that sends them.
type udpRoute struct {
	dest   *udp.Dest
	flow   roce.Flow
	socket int
	// window is the maximum number of a QP's unacknowledged packets on the path.
	window uint32
	// budget limits packets to the peer's NIC, nil if its socket buffer is unknown.
	budget *budget
	// ports holds the peer's only source ports. Nil allows any port.
	ports []uint16
	// headerICRC is set if the ICRC of packets covers only the headers.
	headerICRC bool
	// defaultPort is set if no endpoint or address vector named the peer's port.
	defaultPort bool
	// assoc seals the packets of the path, nil for plain packets.
	assoc *association
}

// udpRemoteQP identifies a QP that has sent datagrams.
type udpRemoteQP struct {
	gid verbs.GID
	qpn uint32
}

const (
	// maxUDPSources limits the remembered sources of packets, and the reply routes.
	maxUDPSources = 4096
	// maxUDPPeers limits the remembered peers and destinations.
	maxUDPPeers = 1 << 16

	// udpSlack is the number of bytes that the kernel charges to a socket buffer for a packet in addition to its
	// payload.
	udpSlack = 1024

	// unknownPeerWindow is the window toward a peer with a socket buffer of unknown size. The kernel's Soft-RoCE sends
	// as many packets ahead. Soft-RoCE answers every duplicate: if it cannot process the window within the QP's
	// timeout, it only answers duplicates until the retries are exhausted.
	unknownPeerWindow = 128

	// minUDPWindow lets a QP make progress toward a peer with a tiny buffer.
	minUDPWindow = 8
)

// extra returns the Endpoint.Extra of a port's QPs with the same sealing.
func (u *udpPort) extra(g *sealing) []byte {
	b := make([]byte, extraLen)
	b[0], b[1], b[2] = 's', 'n', extraVersion
	b[3] = extraRuns | extraFill | extraPorts
	binary.BigEndian.PutUint32(b[4:], uint32(u.conn.Buffer()>>10))
	if g != nil {
		b[3] ^= extraPorts | extraSealed
		if g.any() {
			return b // peers cannot connect to it
		}
		return append(b, g.greeting[:]...)
	}
	switch u.udpNIC.link.cfg.ICRC {
	case ICRCAuto:
		b[3] |= extraOnHost
	case ICRCHeaders:
		b[3] |= extraOnHost | extraAnyHost
	case ICRCFull:
	}
	for socket := range u.conn.Sockets() + 1 {
		b = binary.BigEndian.AppendUint16(b, u.conn.SourcePort(socket))
	}
	return b
}

// lid returns the port's LID: its UDP port, or 0 for 4791.
func (u *udpPort) lid() uint16 {
	if p := u.conn.Addr().Port(); p != roce.Port {
		return p
	}
	return 0
}

// learn records a peer's description of itself. If the peer is sealed, learn returns its greeting and the description
// instead. It ignores the Extra of other providers and of later versions. The LID of another provider is not a port:
// some Ethernet drivers report 1.
func (u *udpPort) learn(e *verbs.Endpoint) (sealed *sealedPeer, err error) {
	b := e.Extra
	if len(b) < 2 || b[0] != 's' || b[1] != 'n' {
		e.LID = 0
		return nil, nil
	}
	if len(b) < extraLen || b[2] != extraVersion {
		return nil, nil
	}
	flags, rest := b[3], b[extraLen:]
	as := udpPeer{
		runs: flags&extraRuns != 0, fill: flags&extraFill != 0,
		onHost: flags&extraOnHost != 0, anyHost: flags&extraAnyHost != 0,
		buffer: min(binary.BigEndian.Uint32(b[4:]), 1<<20) << 10,
	}
	if flags&extraSealed != 0 {
		if flags&extraPorts != 0 || len(rest) != seal.GreetingLen {
			return nil, verbs.Invalidf("the peer's endpoint is sealed and has %d bytes in place of a greeting, or ports", len(rest))
		}
		return &sealedPeer{seal.Greeting(rest), as}, nil
	}
	for ; flags&extraPorts != 0 && len(rest) > 1 && len(as.ports) < maxPorts; rest = rest[2:] {
		as.ports = append(as.ports, binary.BigEndian.Uint16(rest))
	}
	addr := udpAddr{e.GID, e.LID}
	if addr.port == 0 {
		addr.port = roce.Port
	}
	if u.peers[addr] == nil {
		if len(u.peers) >= maxUDPPeers {
			for victim := range u.peers {
				delete(u.peers, victim) // existing routes keep their pointers to it
				break
			}
		}
		u.peers[addr] = &udpPeer{budget: newBudget()}
	}
	u.peers[addr].describe(&as)
	return nil, nil
}

// sealedPeer is a sealed peer's description of itself.
type sealedPeer struct {
	greeting seal.Greeting
	as       udpPeer
}

// describe copies the peer's description of itself.
func (p *udpPeer) describe(as *udpPeer) {
	p.runs, p.fill, p.buffer, p.ports = as.runs, as.fill, as.buffer, as.ports
	p.onHost, p.anyHost = as.onHost, as.anyHost
}

// sumsHeaders reports whether the ICRC of plain packets to a peer covers only the headers.
func (u *udpPort) sumsHeaders(to verbs.GID, peer *udpPeer) bool {
	mine := u.udpNIC.link.cfg.ICRC
	if u.udpNIC.isLocal(to) {
		return mine != ICRCFull && peer.onHost
	}
	return mine == ICRCHeaders && peer.anyHost
}

// learn passes the peer's endpoint to the QP's port. It returns an error if only one of the two QPs is sealed.
func (q *qp) learn(u *udpPort, e *verbs.Endpoint) error {
	if err := q.usable(); err != nil {
		return err // closed since, perhaps with its Seal
	}
	s, err := u.learn(e)
	switch {
	case err != nil:
		return err
	case q.typ == verbs.UD && e.GID.IsZero():
		return nil // a UD QP may get its peer from another QP
	case s == nil && q.sealing != nil:
		return verbs.Invalidf("this QP is sealed and the peer's is not: give both a Seal, or none")
	case s != nil && q.sealing == nil:
		return verbs.Invalidf("the peer's QP is sealed and this one is not: give both a Seal, or none")
	case s == nil:
		return nil
	case q.sealing.any():
		return verbs.Invalidf("this QP has AnySeal: connect it without an endpoint, and a QP with the peer's Seal first")
	}
	a, err := q.sealing.meet(&s.greeting, udpAddr{e.GID, e.LID}, &s.as)
	if err == nil && q.typ != verbs.UD && q.path == nil {
		q.assoc = a
	}
	return err
}

// setRoute sets the route of a path, to the port that the address vector names as its DLID.
func (u *udpPort) setRoute(p *path, a *association) (err error) {
	to := udpAddr{p.dgid, p.attr.DLID}
	if p.sealing == nil {
		if to.port == 0 {
			to.port = roce.Port
		}
		p.route, err = u.newRoute(p, to, nil)
		return err
	}
	if a == nil || !a.at(to) {
		if a = p.sealing.find(to); a == nil {
			return verbs.Invalidf("address vector: no QP of the NIC is connected to a sealed QP at %s", to.addrPort())
		}
	}
	p.route, err = u.newRoute(p, a.addr, a)
	return err
}

// newRoute returns the route of a path to a peer, sealed unless assoc is nil.
func (u *udpPort) newRoute(p *path, to udpAddr, assoc *association) (*udpRoute, error) {
	socket := u.next
	if p.datagrams && assoc == nil && u.lid() != 0 {
		socket = u.conn.Sockets() // the receiver replies to the source port
	} else if label := p.attr.FlowLabel; label != 0 {
		socket = int(roce.SourcePort(label)) % u.conn.Sockets()
	} else if u.next++; u.next == u.conn.Sockets() {
		u.next = 0
	}
	from := udpAddr{p.sgid, u.conn.SourcePort(socket)}
	flow, err := roce.NewFlow(from.addrPort(), to.addrPort())
	if err != nil {
		return nil, verbs.Invalidf("address vector: no route from %s to %s: %v", p.sgid, p.dgid, err)
	}
	peer := u.peers[to]
	if assoc != nil {
		peer = &assoc.peer
	} else if peer == nil && u.udpNIC.link.cfg.AssumeSoftNICs && !u.sealed && len(u.peers) < maxUDPPeers {
		peer = &udpPeer{runs: true, fill: true, buffer: uint32(u.conn.Buffer()), budget: newBudget()}
		u.peers[to] = peer
	}
	target := udpTarget{to, udp.Marks{Class: p.attr.TrafficClass, Hops: p.attr.HopLimit}}
	route := &udpRoute{dest: u.dest(target, peer), flow: flow, socket: socket, defaultPort: p.attr.DLID == 0, assoc: assoc}
	if peer == nil {
		route.window = unknownPeerWindow
		return route, nil
	}
	route.ports = peer.ports
	route.headerICRC = assoc == nil && u.sumsHeaders(to.gid, peer)
	route.window = u.peerWindow(peer.buffer)
	full := route.window
	if b := u.nic.core.traits.windowBytes; b > 0 && u.onCaller() {
		full = b / uint32(u.mtu.Bytes()) // more QPs must not add data in flight: see defaultUDPInFlight
	}
	peer.budget.set(route.window, full) // the peer may have restarted with another buffer
	route.budget = &peer.budget
	return route, nil
}

// peerWindow returns the maximum number of a QP's unacknowledged packets toward a peer with a socket buffer of the
// given size in bytes.
func (u *udpPort) peerWindow(buffer uint32) uint32 {
	return max(buffer/2/(uint32(u.mtu.Bytes())+udpSlack), minUDPWindow)
}

// dest returns the destination of packets to a peer. peer is nil if it has not described itself. QPs
// share the destination, so that their packets can leave in one run.
func (u *udpPort) dest(to udpTarget, peer *udpPeer) *udp.Dest {
	runs := peer != nil && peer.runs
	fill := runs && peer.fill
	d := u.dests[to]
	if d == nil || d.Runs() != runs || d.Fills() != fill {
		if len(u.dests) >= maxUDPPeers {
			clear(u.dests)
		}
		d = udp.NewDest(to.addrPort(), runs).Mark(to.marks)
		if fill {
			d.Fill()
		}
		u.dests[to] = d
	}
	return d
}

// learnReplyRoute records the receiving port of a QP that has sent a datagram from that port. A reply
// specifies only the datagram's address and QP number.
func (u *udpPort) learnReplyRoute(from *udpSource, qpn uint32) {
	s := udpRemoteQP{from.addr.gid, qpn}
	if w := u.replyRoutes[s]; w != nil && w.dest.Addr().Port() == from.addr.port {
		return
	}
	if len(u.replyRoutes) >= maxUDPSources {
		clear(u.replyRoutes)
	}
	back := &path{sgid: u.nic.gids[0].GID, dgid: from.path.sgid, datagrams: true}
	if route, err := u.newRoute(back, from.addr, nil); err == nil {
		u.replyRoutes[s] = route
	}
}

// routeOf returns the route of a packet. A reply goes to the port that sent the datagram.
func (u *udpPort) routeOf(p *packet) *udpRoute {
	route := p.path.route
	if p.path.datagrams && route.defaultPort && len(u.replyRoutes) > 0 {
		if w := u.replyRoutes[udpRemoteQP{p.path.dgid, p.DestQPN}]; w != nil {
			return w
		}
	}
	return route
}
