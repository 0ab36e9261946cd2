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

// udpPort holds a set of sockets of a NIC on a UDPLink, and the peers known to it.
//
// Packets are read by the program, in Poll, or by the port's goroutine. The reader also serves the
// packets, under the core's lock. One goroutine at a time reads and serves, so packets are served in
// arrival order.
type udpPort struct {
	nic    *NIC
	udpNIC *udpNIC
	conn   *udp.Conn
	// first is set for the NIC's first port, whose goroutine reads the rings.
	first bool

	// The core's lock guards the fields from here to parts.
	writer *udp.Writer
	// served is set while the holder of the lock settles after reading packets.
	served bool
	// next is the socket for the next path.
	next        int
	peers       map[udpAddr]*udpPeer
	dests       map[udpTarget]*udp.Dest
	replyRoutes map[udpRemoteQP]*udpRoute
	// mtu is the maximum payload of a packet.
	mtu verbs.MTU
	// slot is the length of a full packet in a run, including fill.
	slot int
	// users counts the QPs on the port.
	users int
	// sealed is set on a port for sealed packets.
	sealed bool
	// ticker calls tick on a port for sealed packets.
	ticker *time.Timer
	// parts holds a captured packet, so that a capture does not allocate.
	parts [1][]byte

	// reading is held while packets are read and served. It is locked before the core's lock. It guards
	// the fields from here to explain.
	reading sync.Mutex
	reader  *udp.Reader
	closed  bool
	// misses counts the program's reads since the last one that found packets.
	misses int
	// batch is the number of bytes in the last non-empty read.
	batch int
	// midway is set if the last packet read was not the last of its message.
	midway bool
	// seen is background.polls when another port's goroutine last checked it.
	seen    uint32
	sources map[udpAddr]*udpSource
	// last is the source of the last packet.
	last   *udpSource
	packet packet
	run    udpRun
	// reason is the decoder's result for packet.
	reason  roce.Reason
	explain roce.Explainer

	background backgroundReader // the goroutine
}

// udpHeader is the length of a UDP header.
const udpHeader = 8

// slotHeader is the number of bytes that a packet occupies in a run beyond its payload, including fill.
// All headers fit, so packets of one message and of the next leave in one run. It is a multiple of 16
// because unaligned copies take longer.
const slotHeader = 48

// plug opens the NIC's sockets for plain packets.
func (w *udpNIC) plug(n *NIC) (err error) {
	if n.udp, err = w.openPort(n, w.link.cfg.Port, 0); err != nil {
		return err
	}
	n.cfg.MTU = n.udp.mtu
	n.budget.set(uint32(w.link.cfg.NICWindow), uint32(w.link.cfg.NICWindow))
	// Over UDP the GID table has one entry, the host's address. RoCE's link-local entry is omitted.
	n.gids = []verbs.GIDEntry{{GID: verbs.GIDFromAddr(n.udp.conn.Addr().Addr()), Index: 0, Type: verbs.GIDTypeRoCEv2}}
	return nil
}

// openPort opens sockets of a NIC for packets that are overhead bytes longer than plain ones.
func (w *udpNIC) openPort(n *NIC, port uint16, overhead int) (*udpPort, error) {
	l := w.link
	addr := n.gids[len(n.gids)-1].GID.Addr()
	mtu, err := n.fitMTU(addr, overhead)
	if err != nil {
		return nil, err
	}
	sockets := l.cfg.Sockets
	if sockets == 0 && addr.IsLoopback() {
		sockets = 1 // packets of all paths share batches
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

// newPort adds a port to a NIC. The caller starts it.
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

// largestMTU returns the largest RDMA MTU whose packets fit an interface MTU in bytes, 0 if none fits.
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

// port returns the NIC's sockets for plain packets, or for sealed ones if g is not nil.
func (n *NIC) port(g *sealing) *udpPort {
	if g != nil {
		return n.sealed
	}
	return n.udp
}

// port returns the QP's sockets, nil on links without sockets.
func (q *qp) port() *udpPort { return q.nic.port(q.sealing) }

// mtu returns the maximum payload of the QP's packets.
func (q *qp) mtu() verbs.MTU {
	if q.sealing != nil {
		return q.nic.sealed.mtu
	}
	return q.nic.cfg.MTU
}

// use adds more to the number of QPs on the port. Polling programs and spinning goroutines read only
// ports with QPs.
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

// onCaller reports whether a post moves its data within the call. On loopback, the kernel delivers a
// packet to the receiving socket within the sending call.
func (u *udpPort) onCaller() bool { return u.conn.Addr().Addr().IsLoopback() && u.udpNIC.queue == nil }

// close stops the port's goroutine and closes its sockets. The caller must not hold the core's lock.
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

// gidWithPort is the prefix of a GID that combines a NIC's IPv4 address and UDP port. It is a
// never-routed IPv6 address (RFC 4193), and its suffix equals the GID of the address alone:
//
//	fd69:6276:7800:PORT:0:ffff:a.b.c.d
var gidWithPort = [6]byte{0xfd, 'i', 'b', 'v', 'x', 0}

// portGID adds a port to the GID of an IPv4 address. It returns other GIDs unchanged: an IPv6 GID has
// no space for a port, and a group does not have a port.
func portGID(g verbs.GID, port uint16) verbs.GID {
	if a := g.Addr(); a.Is4() && !a.IsMulticast() {
		copy(g[:], gidWithPort[:])
		binary.BigEndian.PutUint16(g[6:], port)
	}
	return g
}

// splitGID returns the GID of the address in a GID with a port, and the port. It returns other GIDs
// unchanged, with port 0.
func splitGID(g verbs.GID) (verbs.GID, uint16) {
	plain := g
	clear(plain[:8])
	if [6]byte(g[:]) != gidWithPort || !plain.Addr().Is4() {
		return g, 0
	}
	return plain, binary.BigEndian.Uint16(g[6:])
}

// portGIDs reports whether GIDs shown to programs contain ports.
func (n *NIC) portGIDs() bool { return n.core.udpNIC != nil && n.core.udpNIC.link.cfg.PortGIDs }

// shown returns a path of a received packet with the GIDs shown to programs.
func (p *path) shown(n *NIC) path {
	to, port := *p, p.port
	if port >= udp.FirstSourcePort {
		port = roce.Port // see udpPort.replyPath
	}
	to.sgid, to.dgid = portGID(p.sgid, port), portGID(p.dgid, n.udp.conn.Addr().Port())
	return to
}
