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
// Packets are read by whoever comes first, the program in Poll or the port's goroutine, and
// are served under the core's lock in the order in which they were read: reading is the time
// in which the order is made, so one at a time reads and serves.
type udpPort struct {
	nic  *NIC
	link *UDPLink
	conn *udp.Conn

	// Under the core's lock.
	writer  *udp.Writer
	dirty   bool // in link.dirty
	served  bool // packets were just read, by whoever has the lock
	next    int  // the socket of the next path
	peers   map[udpPeer]udpTraits
	dests   map[udpTarget]*udp.Dest // so that packets of several QPs can leave in one run
	budgets map[udpPeer]*budget
	heard   map[udpSpeaker]*udpWay
	parts   [1][]byte // a captured packet, here so that nothing is allocated for it

	// reading is held by whoever reads, and taken before the core's lock.
	reading sync.Mutex
	reader  *udp.Reader
	closed  bool
	vain    int  // reads of the program, one after the other, that found nothing
	batch   int  // bytes of the last read that found something
	midway  bool // its last packet was not the last of its message
	sources map[udpSource]*udpSender
	last    *udpSender
	packet  packet

	attention attention
}

// attention is how a port's goroutine learns whether the program reads by itself.
type attention struct {
	polls   atomic.Uint32 // empty polls by the program
	alarm   chan struct{} // the program has stopped polling, and waits
	stop    chan struct{}
	stopped sync.WaitGroup
}

// udpPeer is where a NIC receives.
type udpPeer struct {
	gid  verbs.GID
	port uint16
}

// udpTarget is where packets go, and what their IP headers say on the way.
type udpTarget struct {
	udpPeer
	marks udp.Marks
}

// udpTraits is what a peer has said of itself in an endpoint.
type udpTraits struct {
	runs   bool   // checks the ICRC of datagrams that arrive as one
	buffer uint32 // bytes of its socket buffer
}

// udpSource is where a packet comes from, udpSender what is remembered about it.
type udpSource struct {
	gid  verbs.GID
	port uint16
}

type udpSender struct {
	source udpSource
	path   path
	flow   roce.Flow
	addr   netip.AddrPort
}

// udpWay is what the link knows of a path: where its packets go, and from which socket.
type udpWay struct {
	dest   *udp.Dest
	flow   roce.Flow
	socket int
	window uint32
	budget *budget // of all QPs whose peers are on that NIC, nil if its buffer is not known
	// guessed says that nobody has said on which port the peer receives.
	guessed bool
}

// udpSpeaker is a QP from which datagrams have come.
type udpSpeaker struct {
	gid verbs.GID
	qpn uint32
}

// hear remembers where a QP receives that has sent a datagram from a port of its own: an
// answer to it finds nothing but the address and the QP number in the datagram.
func (u *udpPort) hear(from *udpSender, qpn uint32) {
	s := udpSpeaker{from.source.gid, qpn}
	if w := u.heard[s]; w != nil && w.dest.Addr().Port() == from.source.port {
		return
	}
	if len(u.heard) >= maxUDPSenders {
		clear(u.heard)
	}
	back := &path{sgid: from.path.dgid, dgid: from.path.sgid, datagrams: true}
	if way, err := u.way(back, udpPeer{s.gid, from.source.port}); err == nil {
		u.heard[s] = way
	}
}

const (
	// maxUDPSenders and maxUDPPeers bound what is remembered of others.
	maxUDPSenders = 4096
	maxUDPPeers   = 1 << 16

	// udpOverhead is the most that surrounds a payload, without the IP header: UDP, BTH,
	// RETH, immediate, ICRC.
	udpOverhead = 8 + 12 + 16 + 4 + 4

	// udpSlack is what the kernel counts against a socket buffer for a packet beyond
	// its payload.
	udpSlack = 1024

	// strangerWindow is the window toward a peer that has not said how much it can hold: as
	// many packets as the kernel's Soft-RoCE sends ahead itself. It answers every packet that
	// comes twice, so more of them than it works off within the timeout of a QP would keep
	// it busy with those until the retries are used up.
	strangerWindow = 128

	// minUDPWindow keeps a QP going toward a peer with next to no buffer.
	minUDPWindow = 8
)

// plug opens the sockets of a NIC.
func (l *UDPLink) plug(n *NIC) error {
	addr := n.gids[len(n.gids)-1].GID.Addr()
	if err := n.fitMTU(addr); err != nil {
		return err
	}
	conn, err := udp.Open(udp.Config{
		Addr: addr, Port: l.cfg.Port, Sockets: l.cfg.Sockets, Buffer: l.cfg.Buffer,
		NoSegment: l.cfg.NoSegment, NoCoalesce: l.cfg.NoCoalesce,
	})
	if err != nil {
		return err
	}
	u := &udpPort{
		nic: n, link: l, conn: conn, writer: conn.NewWriter(), reader: conn.NewReader(),
		peers: make(map[udpPeer]udpTraits), heard: make(map[udpSpeaker]*udpWay), dests: make(map[udpTarget]*udp.Dest), budgets: make(map[udpPeer]*budget),
		sources: make(map[udpSource]*udpSender),
	}
	n.udp, n.budget.limit = u, uint32(l.cfg.NICWindow)
	// Over UDP an address is one of the host: there is no row for another.
	n.gids = []verbs.GIDEntry{{GID: verbs.GIDFromAddr(addr), Index: 0, Type: verbs.GIDTypeRoCEv2}}
	u.start()
	return nil
}

// fitMTU chooses the largest MTU whose packets fit the interface, or checks the one that was
// asked for.
func (n *NIC) fitMTU(addr netip.Addr) error {
	mtu, name, err := udp.InterfaceMTU(addr)
	if err != nil {
		return err
	}
	room := mtu - udpOverhead - 20
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

// route finds the way of a path, to the port that the address vector names as its DLID.
func (l *UDPLink) route(n *NIC, p *path) error {
	u := n.udp
	to := udpPeer{p.dgid, p.attr.DLID}
	if to.port == 0 {
		to.port = roce.Port
	}
	way, err := u.way(p, to)
	p.way = way
	return err
}

// way returns the way of a path to a peer.
func (u *udpPort) way(p *path, to udpPeer) (*udpWay, error) {
	socket := u.next
	if p.datagrams && u.lid() != 0 {
		socket = u.conn.Sockets() // so that the receiver learns where to answer
	} else if label := p.attr.FlowLabel; label != 0 {
		socket = int(label % uint32(u.conn.Sockets()))
	} else if u.next++; u.next == u.conn.Sockets() {
		u.next = 0
	}
	from := netip.AddrPortFrom(p.sgid.Addr(), u.conn.SourcePort(socket))
	dest := netip.AddrPortFrom(p.dgid.Addr(), to.port)
	flow, err := roce.NewFlow(from, dest)
	if err != nil {
		return nil, verbs.Invalidf("address vector: no way from %s to %s: %v", p.sgid, p.dgid, err)
	}
	traits, known := u.peers[to]
	target := udpTarget{to, udp.Marks{Class: p.attr.TrafficClass, Hops: p.attr.HopLimit}}
	way := &udpWay{dest: u.dest(target, dest, known && traits.runs), flow: flow, socket: socket, window: maxWindow, guessed: p.attr.DLID == 0}
	if known {
		way.window = max(traits.buffer/2/(uint32(u.nic.cfg.MTU.Bytes())+udpSlack), minUDPWindow)
		way.budget = u.budget(to, way.window)
	}
	if !known {
		way.window = strangerWindow
	}
	return way, nil
}

// dest returns the destination of a peer.
func (u *udpPort) dest(to udpTarget, addr netip.AddrPort, runs bool) *udp.Dest {
	d := u.dests[to]
	if d == nil || d.Runs() != runs {
		if len(u.dests) >= maxUDPPeers {
			clear(u.dests)
		}
		d = udp.NewDest(addr, runs).Mark(to.marks)
		u.dests[to] = d
	}
	return d
}

// budget returns the window that all QPs share whose peers are on one NIC.
func (u *udpPort) budget(to udpPeer, limit uint32) *budget {
	b := u.budgets[to]
	if b == nil {
		if len(u.budgets) >= maxUDPPeers {
			clear(u.budgets)
		}
		b = &budget{}
		u.budgets[to] = b
	}
	b.limit = limit // it may have come back with another buffer
	return b
}

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
