package softnic

import (
	"ibverbx/internal/roce"
	"ibverbx/internal/udp"
	"ibverbx/verbs"
)

// catchUpReads is how many batches are read before timers count: the packets that answer them
// may be behind others.
const catchUpReads = 4

// udpSource is a source of packets.
type udpSource struct {
	addr udpAddr
	// path is the path of its packets.
	path path
	flow roce.Flow
}

// read reads and serves at most one batch of packets and reports whether there were any. The
// port's reading is held, the core's lock is not.
func (u *udpPort) read() bool {
	if u.closed {
		return false
	}
	n, err := u.reader.Read()
	if n == 0 && err == nil {
		return false
	}
	c := u.nic.core
	c.mu.Lock()
	u.serveBatch(n, err)
	c.mu.Unlock()
	return n > 0
}

// readLocked is read with the core's lock held.
func (u *udpPort) readLocked() bool {
	if u.closed {
		return false
	}
	n, err := u.reader.Read()
	u.serveBatch(n, err)
	return n > 0
}

// serveBatch serves the n packets that were read, or counts an error.
func (u *udpPort) serveBatch(n int, err error) {
	if err != nil {
		u.nic.stats.ReceiveErrors++
	}
	if n == 0 {
		return
	}
	u.batch = 0
	for i := range n {
		d := u.reader.Datagram(i)
		u.batch += len(d.Data)
		u.serve(d)
	}
	t := traits[u.packet.Opcode&roce.OperationMask]
	u.midway = t&(opIsSend|opIsWrite) != 0 && t&opEnds == 0
	u.served = true
	u.nic.core.settle()
	u.served = false
}

// pump reads and serves some batches of packets of the NIC. It reports whether there were any and whether
// another goroutine is reading. The core's lock is held, so it does not wait for that goroutine;
// catchUp does.
func (n *NIC) pump() (read, busy bool) {
	for _, u := range n.ports {
		if u.served {
			continue
		}
		if !u.reading.TryLock() {
			busy = true
			continue
		}
		read = u.readBatches() || read
		u.reading.Unlock()
	}
	return read, busy
}

// takeIn reads and serves some batches of packets and reports whether there were any. The port's reading and the
// core's lock are held.
func (u *udpPort) readBatches() (read bool) {
	for k, left := 1, catchUpReads; left > 0 && k > 0 && !u.closed; left-- {
		k, _ = u.reader.Read() // an error comes again, in a read that counts it
		for i := range k {
			u.serve(u.reader.Datagram(i))
		}
		read = read || k > 0
	}
	return read
}

// catchUp reads what has arrived if a timer is due, because it may answer the timer, and reports whether
// one is. It waits for other readers, so the core's lock must not be held.
func (w *udpNIC) catchUp() bool {
	w.mu.Lock()
	w.at = w.clock()
	due := w.due()
	w.mu.Unlock()
	if due {
		w.readArrived()
	}
	return due
}

// readArrived reads and serves all packets in the sockets, within limits. It waits for other readers, so the core's lock must not be held.
func (w *udpNIC) readArrived() {
	w.mu.hold()
	ports := w.nic.ports
	w.mu.Unlock()
	for _, u := range ports {
		u.reading.Lock()
		for left := catchUpReads; left > 0 && u.read(); left-- {
		}
		u.reading.Unlock()
	}
}

// serve takes a datagram, or a coalesced run of them, and passes each to the NIC.
func (u *udpPort) serve(d *udp.Datagram) {
	u.udpNIC.link.order.received()
	if u.nic.closed {
		return
	}
	addr := udpAddr{d.From, d.Port}
	var from *udpSource
	if !u.sealed { // a sealed packet says itself who has sent it
		from = u.source(addr)
	}
	if (from == nil && !u.sealed) || len(d.Data) == 0 {
		u.nic.stats.Malformed++
		return
	}
	for b := d.Data; len(b) > 0; {
		size := min(d.Segment, len(b))
		switch {
		case u.sealed:
			u.open(addr, b[:size])
		case u.run.q == nil || !u.run.next(from, b[:size:size], &u.explain):
			u.run.q = nil
			u.serveDatagram(from, b[:size:size])
		}
		b = b[size:]
	}
	u.run.q = nil
}

// verdict is what became of a datagram.
type rxResult uint8

const (
	rxMalformed rxResult = iota // no packet
	rxDamaged                   // a packet with a wrong ICRC
	rxIntact
)

// examine decodes a packet and checks its ICRC. A NIC that accepts ICRCs of the headers accepts them from any
// address, because the sender decides by the flags in the NIC's endpoints whether to use them.
func (u *udpPort) decode(from *udpSource, b []byte) (payload []byte, id uint16, v rxResult) {
	payload, u.reason = u.packet.Decode(b)
	if u.reason != roce.OK && u.reason != roce.Congestion {
		return nil, 0, rxMalformed
	}
	ok := false
	if u.packet.HeaderICRC && u.udpNIC.link.cfg.ICRC != ICRCFull {
		id, ok = from.flow.CheckHeaders(b, &u.explain)
	}
	if !ok {
		u.packet.HeaderICRC = false // it may be another NIC's, which sets reserved bits
		id, ok = from.flow.Check(b, &u.explain)
	}
	if !ok {
		return nil, id, rxDamaged
	}
	return payload, id, rxIntact
}

// serveOne passes one datagram to the NIC if it is an intact packet, with or without fill. A datagram
// whose fill makes no sense may have been sent by another kind of NIC, which may set the bits at will.
func (u *udpPort) serveDatagram(from *udpSource, b []byte) {
	stats, p, whole := &u.nic.stats, &u.packet, b
	b = roce.Trim(b)
	payload, id, v := u.decode(from, b)
	if v != rxIntact && len(b) < len(whole) {
		first := v
		b = whole
		payload, id, v = u.decode(from, b)
		v = max(v, first)
	}
	switch {
	case v == rxMalformed:
		stats.Malformed++
		return
	case v == rxDamaged:
		stats.BadICRC++
		return
	case u.reason == roce.Congestion:
		stats.CongestionNotices++
		return
	case !roce.PKeysMatch(p.PKey, roce.PKeyDefault):
		stats.BadPKey++
		return
	}
	// Packets of a NIC of this link were captured when they were sent.
	if u.udpNIC.link.captures() && !u.udpNIC.link.sends(from.addr) {
		m := udp.Marks{Hops: udp.DefaultHops}
		u.capture(from.addr.addrPort(), u.conn.Addr(), from.flow, p, id, m, b)
	}
	p.path = &from.path
	if len(payload) == 0 {
		p.noPayload()
	} else {
		p.setPayload(payload)
	}
	if u == u.nic.udp {
		u.deliver(from, p)
		if p.Opcode == roce.RC|roce.OpWriteMiddle {
			u.run.begin(u.nic, p, b, id, len(whole))
		}
	} else {
		u.deliverGroup(from, p)
	}
}

// pass gives a packet to the NIC.
func (u *udpPort) deliver(from *udpSource, p *packet) {
	port := from.addr.port
	if p.Opcode&roce.TransportMask == roce.UD && port < udp.FirstSourcePort && port != roce.Port && u.nic.expects(p) {
		u.learnReplyRoute(from, p.SrcQPN)
	}
	u.nic.receive(p)
}

// expects reports whether a datagram is for a QP that accepts it. Other datagrams must not
// decide where answers go.
func (n *NIC) expects(p *packet) bool {
	q := n.qps.get(p.DestQPN)
	return q != nil && q.typ == verbs.UD && receivable[q.state] && p.QKey == q.attr.QKey
}

// source returns what is remembered about a source of packets, nil if the address is not one.
func (u *udpPort) source(addr udpAddr) *udpSource {
	if u.last != nil && u.last.addr == addr {
		return u.last
	}
	from := u.sources[addr]
	if from == nil {
		if from = u.addSource(addr); from == nil {
			return nil
		}
	}
	u.last = from
	return from
}

// meet remembers a new source. A sender with many addresses makes the port forget other
// sources, which only costs time.
func (u *udpPort) addSource(addr udpAddr) *udpSource {
	flow, err := roce.NewFlow(addr.addrPort(), u.conn.Addr())
	if err != nil {
		return nil
	}
	if len(u.sources) >= maxUDPSources {
		clear(u.sources)
	}
	from := &udpSource{addr: addr, flow: flow, path: u.nic.pathFrom(addr)}
	from.path.dgid = verbs.GIDFromAddr(u.conn.Addr().Addr()) // or the group's
	if u.udpNIC.link.cfg.AssumeSoftNICs && !u.sealed {
		from.path.back = u.replyPath(addr)
	}
	u.sources[addr] = from
	return from
}

// pathFrom returns the path of packets from an address.
func (n *NIC) pathFrom(addr udpAddr) path {
	own := n.gids[0].GID
	return path{sgid: addr.gid, dgid: own, port: addr.port, attr: verbs.AHAttr{DGID: own, HopLimit: 64, Port: 1}}
}

// back returns the path to the NIC that sends from an address, nil if there is none. A NIC that does not receive on port
// 4791 sends datagrams from the port on which it receives.
func (u *udpPort) replyPath(addr udpAddr) *path {
	if addr.port >= udp.FirstSourcePort {
		addr.port = roce.Port
	}
	from := udpAddr{u.nic.gids[0].GID, u.nic.udp.conn.SourcePort(0)}
	flow, err := roce.NewFlow(from.addrPort(), addr.addrPort())
	if err != nil {
		return nil
	}
	dest := udp.NewDest(addr.addrPort(), false).Mark(udp.Marks{Hops: udp.DefaultHops})
	return &path{sgid: from.gid, dgid: addr.gid, attr: verbs.AHAttr{HopLimit: udp.DefaultHops, Port: 1}, route: &udpRoute{dest: dest, flow: flow}}
}

// sends reports whether a NIC of the link sends from addr. Another process on the same address
// has other ports.
func (l *UDPLink) sends(addr udpAddr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.senders[addr] != nil
}
