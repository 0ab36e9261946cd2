package softnic

import (
	"net/netip"
	"sync"
	"sync/atomic"

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
	nic  *NIC
	link *UDPLink
	wire *udpWire
	conn *udp.Conn

	// The core's lock guards the fields from here to parts.
	writer *udp.Writer
	// served says that the holder of the lock has just read packets.
	served bool
	// next is the socket of the next path.
	next  int
	peers map[udpAddr]*udpPeer
	dests map[udpTarget]*udp.Dest
	heard map[udpSpeaker]*udpWay
	// slot is how many bytes a packet with a whole MTU takes in a run, fill included.
	slot int
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
	midway  bool
	sources map[udpAddr]*udpSource
	// last is the source of the last packet.
	last   *udpSource
	packet packet
	// reason is what the decoder said of it.
	reason  roce.Reason
	explain roce.Explainer

	// polls counts empty polls of the program. The port's goroutine reads it to learn whether
	// the program polls.
	polls atomic.Uint32
	// alarm tells the goroutine that the program has stopped polling and waits.
	alarm   chan struct{}
	stop    chan struct{}
	stopped sync.WaitGroup
}

// udpHeader is the length of a UDP header.
const udpHeader = 8

// slotHeader is how many bytes of a run a packet takes beyond its payload, fill included. It has room for
// all headers, so that packets of a message, and of the next one, leave in one run. It is a multiple of
// 16 because copies to and from other addresses take longer.
const slotHeader = 48

// plug opens the sockets of the wire's NIC.
func (w *udpWire) plug(n *NIC) error {
	l := w.link
	addr := n.gids[len(n.gids)-1].GID.Addr()
	if err := n.fitMTU(addr); err != nil {
		return err
	}
	sockets := l.cfg.Sockets
	if sockets == 0 && addr.IsLoopback() {
		sockets = 1 // packets of all paths leave in the same batches
	}
	conn, err := udp.Open(udp.Config{
		Addr: addr, Port: l.cfg.Port, Sockets: sockets, Buffer: l.cfg.Buffer,
		NoSegment: l.cfg.NoSegment, NoCoalesce: l.cfg.NoCoalesce,
	})
	if err != nil {
		return err
	}
	u := &udpPort{
		nic: n, link: l, wire: w, conn: conn, writer: conn.NewWriter(), reader: conn.NewReader(),
		peers: make(map[udpAddr]*udpPeer), heard: make(map[udpSpeaker]*udpWay),
		dests: make(map[udpTarget]*udp.Dest), sources: make(map[udpAddr]*udpSource),
	}
	n.udp, w.port, u.slot = u, u, n.cfg.MTU.Bytes()+slotHeader
	n.budget.set(uint32(l.cfg.NICWindow), uint32(l.cfg.NICWindow))
	// Over UDP the only address is the host's: there is no link-local row.
	n.gids = []verbs.GIDEntry{{GID: verbs.GIDFromAddr(addr), Index: 0, Type: verbs.GIDTypeRoCEv2}}
	u.start()
	return nil
}

// fitMTU chooses the largest MTU whose packets fit the interface, or checks the configured one.
func (n *NIC) fitMTU(addr netip.Addr) error {
	mtu, name, err := udp.InterfaceMTU(addr)
	if err != nil {
		return err
	}
	room := mtu - udpHeader - slotHeader - 20
	if addr.Is6() {
		room -= 20
	}
	fits := verbs.MTU(0)
	for m := verbs.MTU256; m <= verbs.MTU4096; m++ {
		if m.Bytes() <= room {
			fits = m
		}
	}
	switch {
	case fits == 0:
		return verbs.Invalidf("interface %s has an MTU of %d bytes, too little for RDMA", name, mtu)
	case n.mtuGiven && n.cfg.MTU > fits:
		return verbs.Invalidf("Config.MTU %d does not fit interface %s, whose MTU of %d leaves room for %d",
			n.cfg.MTU.Bytes(), name, mtu, fits.Bytes())
	case !n.mtuGiven:
		n.cfg.MTU = fits
	}
	return nil
}

// onCaller reports whether a post moves its data within the call. On the loopback the kernel hands a
// packet to the receiving socket within the call that sends it.
func (u *udpPort) onCaller() bool { return u.conn.Addr().Addr().IsLoopback() && u.wire.queue == nil }

// close ends the port's goroutine and closes its sockets. The core's lock must not be held.
func (u *udpPort) close() error {
	err := u.end()
	u.reading.Lock()
	defer u.reading.Unlock()
	u.closed = true
	if e := u.conn.Close(); err == nil {
		err = e
	}
	return err
}
