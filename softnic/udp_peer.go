package softnic

import (
	"encoding/binary"
	"net/netip"

	"ibverbx/internal/roce"
	"ibverbx/internal/seal"
	"ibverbx/internal/udp"
	"ibverbx/verbs"
)

// Endpoint.Extra of a QP on a UDPLink says that the QP belongs to a softnic, and what a sender
// should know:
//
//	0     1     2     3     4     5     6     7     8
//	"s"   "n"   version flags  socket buffer, KiB   source ports, 16 bits each
//
// Bit 0 of flags says that the receiver checks each datagram of a coalesced run, bit 1 that it finds
// the end of a packet behind which its datagram is filled up (roce.Trim), bit 2 that the UDP ports follow
// from which it sends, bit 3 that the QP is sealed and a greeting follows in their place (docs/wire.md). Bit 4
// says that the receiver accepts packets whose ICRC covers only the headers from NICs on its host, bit 5 from any NIC. A UDP port
// other than 4791 is the endpoint's LID, which RoCE does not use otherwise. That carries the
// port into every address vector.
const (
	extraLen     = 8
	extraVersion = 1
	extraRuns    = 1 << 0
	extraFill    = 1 << 1
	extraPorts   = 1 << 2
	extraSealed  = 1 << 3
	extraOnHost  = 1 << 4
	extraAnyHost = 1 << 5
	// maxPorts bounds the source ports of a peer.
	maxPorts = 64
)

// udpAddr is an address and UDP port at which a NIC receives or from which it sends.
type udpAddr struct {
	gid  verbs.GID
	port uint16
}

func (a udpAddr) addrPort() netip.AddrPort { return netip.AddrPortFrom(a.gid.Addr(), a.port) }

// udpPeer is a softnic that has described itself in an endpoint.
type udpPeer struct {
	// runs says that the peer checks each datagram of a coalesced run.
	runs bool
	// fill says that the peer finds the end of a packet in a datagram that is filled up.
	fill bool
	// onHost is set if the peer accepts packets whose ICRC covers only the headers from NICs on its host, anyHost if it
	// accepts them from any NIC.
	onHost, anyHost bool
	// buffer is the size of the peer's socket buffer in bytes.
	buffer uint32
	// ports are the ports from which the peer sends, nil if it has not announced them.
	ports []uint16
	// budget is shared by all QPs that send to the peer.
	budget budget
}

// udpTarget is the destination of packets and the marks of their IP headers.
type udpTarget struct {
	udpAddr
	marks udp.Marks
}

// udpWay is the route of a path: where its packets go, and from which socket.
type udpWay struct {
	dest   *udp.Dest
	flow   roce.Flow
	socket int
	// window is how many packets a QP may have unacknowledged on the path.
	window uint32
	// budget is that of the peer's NIC, nil if its buffer is not known.
	budget *budget
	// ports are the only ports from which the peer sends. Nil means that it may send from any.
	ports []uint16
	// headerICRC is set if the ICRC of packets covers only the headers.
	headerICRC bool
	// guessed says that no endpoint or address vector named the peer's port.
	guessed bool
	// assoc seals the packets of the path, nil if they are plain.
	assoc *association
}

// udpSpeaker is a QP from which datagrams have come.
type udpSpeaker struct {
	gid verbs.GID
	qpn uint32
}

const (
	// maxUDPSources bounds the remembered sources of packets, and the remembered speakers.
	maxUDPSources = 4096
	// maxUDPPeers bounds the remembered peers and destinations.
	maxUDPPeers = 1 << 16

	// udpSlack is how many bytes the kernel counts against a socket buffer for a packet beyond
	// its payload.
	udpSlack = 1024

	// strangerWindow is the window toward a peer of unknown buffer size. It is as many packets
	// as the kernel's Soft-RoCE sends ahead. Soft-RoCE answers every duplicate: if it cannot work
	// off the window within the timeout of a QP, it only answers duplicates until the retries
	// are used up.
	strangerWindow = 128

	// minUDPWindow keeps a QP going toward a peer with hardly any buffer.
	minUDPWindow = 8
)

// extra returns Endpoint.Extra of a port's QPs with the same sealing.
func (u *udpPort) extra(g *sealing) []byte {
	b := make([]byte, extraLen)
	b[0], b[1], b[2] = 's', 'n', extraVersion
	b[3] = extraRuns | extraFill | extraPorts
	binary.BigEndian.PutUint32(b[4:], uint32(u.conn.Buffer()>>10))
	if g != nil {
		b[3] ^= extraPorts | extraSealed
		if g.any() {
			return b // no peer can be connected to it
		}
		return append(b, g.greeting[:]...)
	}
	switch u.wire.link.cfg.ICRC {
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

// lid returns the LID of the port: its UDP port, or 0 if that is 4791.
func (u *udpPort) lid() uint16 {
	if p := u.conn.Addr().Port(); p != roce.Port {
		return p
	}
	return 0
}

// learn remembers how a peer describes itself, or returns its greeting and the description if it is sealed. It ignores
// Extra of other providers and of later versions. The LID of another provider is not a port: some Ethernet drivers
// report 1.
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
			for any := range u.peers {
				delete(u.peers, any) // its QPs keep what they have learned
				break
			}
		}
		u.peers[addr] = &udpPeer{budget: newBudget()}
	}
	u.peers[addr].describe(&as)
	return nil, nil
}

// sealedPeer is what a peer with a seal says of itself.
type sealedPeer struct {
	greeting seal.Greeting
	as       udpPeer
}

// describe takes over what the peer says of itself.
func (p *udpPeer) describe(as *udpPeer) {
	p.runs, p.fill, p.buffer, p.ports = as.runs, as.fill, as.buffer, as.ports
	p.onHost, p.anyHost = as.onHost, as.anyHost
}

// sumsHeaders reports whether the ICRC of plain packets to a peer covers only the headers.
func (u *udpPort) sumsHeaders(to verbs.GID, peer *udpPeer) bool {
	mine := u.wire.link.cfg.ICRC
	if u.wire.isLocal(to) {
		return mine != ICRCFull && peer.onHost
	}
	return mine == ICRCHeaders && peer.anyHost
}

// learn lets the port of a QP learn what the QP's peer says about itself. It returns an error if one of the two
// is sealed and the other is not.
func (q *qp) learn(u *udpPort, e *verbs.Endpoint) error {
	s, err := u.learn(e)
	switch {
	case err != nil:
		return err
	case q.typ == verbs.UD && e.GID.IsZero():
		return nil // a UD QP may learn of its peer from another QP
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

// route finds the way of a path, to the port that the address vector names as its DLID.
func (u *udpPort) route(p *path, a *association) (err error) {
	to := udpAddr{p.dgid, p.attr.DLID}
	if p.sealing == nil {
		if to.port == 0 {
			to.port = roce.Port
		}
		p.way, err = u.way(p, to, nil)
		return err
	}
	if a == nil || !a.at(to) {
		if a = p.sealing.find(to); a == nil {
			return verbs.Invalidf("address vector: no QP of the NIC is connected to a sealed QP at %s", to.addrPort())
		}
	}
	p.way, err = u.way(p, a.addr, a)
	return err
}

// way returns the way of a path to a peer, sealed unless assoc is nil.
func (u *udpPort) way(p *path, to udpAddr, assoc *association) (*udpWay, error) {
	socket := u.next
	if p.datagrams && assoc == nil && u.lid() != 0 {
		socket = u.conn.Sockets() // its source port tells the receiver where to answer
	} else if label := p.attr.FlowLabel; label != 0 {
		socket = int(roce.SourcePort(label)) % u.conn.Sockets()
	} else if u.next++; u.next == u.conn.Sockets() {
		u.next = 0
	}
	from := udpAddr{p.sgid, u.conn.SourcePort(socket)}
	flow, err := roce.NewFlow(from.addrPort(), to.addrPort())
	if err != nil {
		return nil, verbs.Invalidf("address vector: no way from %s to %s: %v", p.sgid, p.dgid, err)
	}
	peer := u.peers[to]
	if assoc != nil {
		peer = &assoc.peer
	} else if peer == nil && u.wire.link.cfg.AssumeSoftNICs && !u.sealed && len(u.peers) < maxUDPPeers {
		peer = &udpPeer{runs: true, fill: true, buffer: uint32(u.conn.Buffer()), budget: newBudget()}
		u.peers[to] = peer
	}
	target := udpTarget{to, udp.Marks{Class: p.attr.TrafficClass, Hops: p.attr.HopLimit}}
	way := &udpWay{dest: u.dest(target, peer), flow: flow, socket: socket, guessed: p.attr.DLID == 0, assoc: assoc}
	if peer == nil {
		way.window = strangerWindow
		return way, nil
	}
	way.ports = peer.ports
	way.headerICRC = assoc == nil && u.sumsHeaders(to.gid, peer)
	way.window = u.peerWindow(peer.buffer)
	full := way.window
	if b := u.nic.core.traits.windowBytes; b > 0 && u.onCaller() {
		full = b / uint32(u.mtu.Bytes()) // more QPs make the wire no longer: see defaultUDPInFlight
	}
	peer.budget.set(way.window, full) // the peer may have come back with another buffer
	way.budget = &peer.budget
	return way, nil
}

// peerWindow returns how many packets a QP may have unacknowledged toward a peer with a socket buffer of so many bytes.
func (u *udpPort) peerWindow(buffer uint32) uint32 {
	return max(buffer/2/(uint32(u.mtu.Bytes())+udpSlack), minUDPWindow)
}

// dest returns the destination of a peer, nil if it has not described itself. QPs share it, so that their
// packets can leave in one run.
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

// hear remembers where a QP receives that has sent a datagram from its receiving port. An answer
// has only the address and the QP number of that datagram.
func (u *udpPort) hear(from *udpSource, qpn uint32) {
	s := udpSpeaker{from.addr.gid, qpn}
	if w := u.heard[s]; w != nil && w.dest.Addr().Port() == from.addr.port {
		return
	}
	if len(u.heard) >= maxUDPSources {
		clear(u.heard)
	}
	back := &path{sgid: u.nic.gids[0].GID, dgid: from.path.sgid, datagrams: true}
	if way, err := u.way(back, from.addr, nil); err == nil {
		u.heard[s] = way
	}
}

// wayOf returns the way of a packet. An answer to a datagram goes to the port from which the
// datagram came.
func (u *udpPort) wayOf(p *packet) *udpWay {
	way := p.path.way
	if p.path.datagrams && way.guessed && len(u.heard) > 0 {
		if w := u.heard[udpSpeaker{p.path.dgid, p.DestQPN}]; w != nil {
			return w
		}
	}
	return way
}
