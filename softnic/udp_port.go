package softnic

import (
	"encoding/binary"
	"net/netip"
	"sync"
	"time"

	"ibverbx/internal/roce"
	"ibverbx/internal/udp"
	"ibverbx/verbs"
)

// udpPort is the wire side of a NIC on a UDPLink: its sockets, and what it knows of peers.
//
// Either the program reads packets, in Poll, or the port's goroutine does. The reader also
// serves the packets, under the core's lock. One goroutine at a time reads and serves, so
// packets are served in the order in which they were read.
type udpPort struct {
	nic    *NIC
	udpNIC *udpNIC
	conn   *udp.Conn
	// first is set for the NIC's first port, whose goroutine reads the rings.
	first bool

	// The core's lock guards the fields from here to parts.
	writer *udp.Writer
	// served says that the holder of the lock has just read packets.
	served bool
	// next is the socket of the next path.
	next        int
	peers       map[udpAddr]*udpPeer
	dests       map[udpTarget]*udp.Dest
	replyRoutes map[udpRemoteQP]*udpRoute
	// mtu is the most that a packet carries.
	mtu verbs.MTU
	// slot is how many bytes a packet with a whole MTU takes in a run, fill included.
	slot int
	// users counts the QPs that use the port.
	users int
	// sealed says that the port is for sealed packets.
	sealed bool
	// ticker calls tick on a port for sealed packets.
	ticker *time.Timer
	// parts is a captured packet. It is here so that a capture allocates nothing.
	parts [1][]byte

	// reading is held while packets are read and served. It is taken before the core's lock. It
	// guards the fields from here to packet.
	reading sync.Mutex
	reader  *udp.Reader
	closed  bool
	// misses counts reads of the program since the last one that found packets.
	misses int
	// batch is how many bytes the last read found, of those that found some.
	batch int
	// midway says that the last packet read was not the last of its message.
	midway bool
	// seen is what polls was when another port's goroutine read it last.
	seen    uint32
	sources map[udpAddr]*udpSource
	// last is the source of the last packet.
	last   *udpSource
	packet packet
	run    udpRun
	// reason is what the decoder said of it.
	reason  roce.Reason
	explain roce.Explainer

	background backgroundReader // the goroutine
}

// udpHeader is the length of a UDP header.
const udpHeader = 8

// slotHeader is how many bytes of a run a packet takes beyond its payload, fill included. It has room for
// all headers, so that packets of a message, and of the next one, leave in one run. It is a multiple of
// 16 because copies to and from other addresses take longer.
const slotHeader = 48

// plug opens the sockets of the wire's NIC for plain packets.
func (w *udpNIC) plug(n *NIC) (err error) {
	if n.udp, err = w.openPort(n, w.link.cfg.Port, 0); err != nil {
		return err
	}
	n.cfg.MTU = n.udp.mtu
	n.budget.set(uint32(w.link.cfg.NICWindow), uint32(w.link.cfg.NICWindow))
	// Over UDP the only address is the host's: there is no link-local row.
	n.gids = []verbs.GIDEntry{{GID: verbs.GIDFromAddr(n.udp.conn.Addr().Addr()), Index: 0, Type: verbs.GIDTypeRoCEv2}}
	return nil
}

// openPort opens sockets of a NIC for packets that are so many bytes longer than plain ones.
func (w *udpNIC) openPort(n *NIC, port uint16, overhead int) (*udpPort, error) {
	l := w.link
	addr := n.gids[len(n.gids)-1].GID.Addr()
	mtu, err := n.fitMTU(addr, overhead)
	if err != nil {
		return nil, err
	}
	sockets := l.cfg.Sockets
	if sockets == 0 && addr.IsLoopback() {
		sockets = 1 // packets of all paths leave in the same batches
	}
	conn, err := udp.Open(udp.Config{
		Addr: addr, Port: port, Sockets: sockets, Buffer: l.cfg.Buffer,
		NoSegment: l.cfg.NoSegment, NoCoalesce: l.cfg.NoCoalesce,
	})
	if err != nil {
		return nil, err
	}
	u := w.newPort(n, conn, mtu, overhead)
	l.addSenders(u)
	u.start()
	return u, nil
}

// newPort adds a port to a NIC. It does not run yet.
func (w *udpNIC) newPort(n *NIC, conn *udp.Conn, mtu verbs.MTU, overhead int) *udpPort {
	u := &udpPort{
		nic: n, udpNIC: w, conn: conn, writer: conn.NewWriter(), reader: conn.NewReader(),
		peers: make(map[udpAddr]*udpPeer), replyRoutes: make(map[udpRemoteQP]*udpRoute),
		dests: make(map[udpTarget]*udp.Dest), sources: make(map[udpAddr]*udpSource),
		mtu: mtu, slot: mtu.Bytes() + slotHeader + overhead, sealed: overhead > 0, first: len(n.ports) == 0,
	}
	n.ports = append(n.ports, u)
	return u
}

// fitMTU returns the largest MTU whose packets fit the interface, at most the configured one. A configured MTU must
// fit without the overhead.
func (n *NIC) fitMTU(addr netip.Addr, overhead int) (fits verbs.MTU, err error) {
	mtu, name, err := udp.InterfaceMTU(addr)
	if err != nil {
		return 0, err
	}
	fits = largestMTU(mtu-overhead, addr.Is6())
	switch {
	case fits == 0:
		return 0, verbs.Invalidf("interface %s has an MTU of %d bytes, too little for RDMA", name, mtu)
	case n.mtuGiven && n.cfg.MTU > fits && overhead == 0:
		return 0, verbs.Invalidf("Config.MTU %d does not fit interface %s, whose MTU of %d leaves room for %d",
			n.cfg.MTU.Bytes(), name, mtu, fits.Bytes())
	case n.mtuGiven || overhead > 0:
		fits = min(fits, n.cfg.MTU)
	}
	return fits, nil
}

// largestMTU returns the largest MTU whose packets fit an interface with an MTU in bytes, 0 if none does.
func largestMTU(mtu int, ipv6 bool) (fits verbs.MTU) {
	room := mtu - udpHeader - slotHeader - 20
	if ipv6 {
		room -= 20
	}
	for m := verbs.MTU256; m <= verbs.MTU4096; m++ {
		if m.Bytes() <= room {
			fits = m
		}
	}
	return fits
}

// port returns the sockets of a NIC for packets with a sealing, nil if the NIC has none.
func (n *NIC) port(g *sealing) *udpPort {
	if g != nil {
		return n.sealed
	}
	return n.udp
}

// port returns the sockets that the QP uses, nil if the link needs none.
func (q *qp) port() *udpPort { return q.nic.port(q.sealing) }

// mtu is the most that a packet of the QP carries.
func (q *qp) mtu() verbs.MTU {
	if q.sealing != nil {
		return q.nic.sealed.mtu
	}
	return q.nic.cfg.MTU
}

// use counts QPs that use the port. Programs that poll, and goroutines that look for packets, read the ports that QPs use.
func (u *udpPort) use(more int) {
	if u == nil {
		return
	}
	used := u.users > 0
	if u.users += more; used == (u.users > 0) {
		return
	}
	var polled []*udpPort
	for _, p := range u.nic.ports {
		if p.users > 0 {
			polled = append(polled, p)
		}
	}
	u.nic.polled = polled
	l := u.udpNIC.link
	l.mu.Lock()
	l.spinners.setUsed(u, !used)
	l.mu.Unlock()
}

// onCaller reports whether a post moves its data within the call. On the loopback the kernel hands a
// packet to the receiving socket within the call that sends it.
func (u *udpPort) onCaller() bool { return u.conn.Addr().Addr().IsLoopback() && u.udpNIC.queue == nil }

// close ends the port's goroutine and closes its sockets. The core's lock must not be held.
func (u *udpPort) close() error {
	err := u.stop()
	u.reading.Lock()
	defer u.reading.Unlock()
	u.closed = true
	if e := u.conn.Close(); err == nil {
		err = e
	}
	return err
}

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
func (n *NIC) portGIDs() bool { return n.core.udpNIC != nil && n.core.udpNIC.link.cfg.PortGIDs }

// shown returns a path of a received packet with the GIDs that programs see.
func (p *path) shown(n *NIC) path {
	to, port := *p, p.port
	if port >= udp.FirstSourcePort {
		port = roce.Port // see udpPort.back
	}
	to.sgid, to.dgid = portGID(p.sgid, port), portGID(p.dgid, n.udp.conn.Addr().Port())
	return to
}
