package softnic

import (
	"ibverbx/internal/roce"
	"ibverbx/internal/udp"
	"ibverbx/verbs"
)

// catchUpReads is the maximum number of batches read before timers fire. Packets that answer the timers
// may be queued behind others.
const catchUpReads = 4

// udpSource is a source address of packets.
type udpSource struct {
	addr udpAddr
	// path is the path of its packets.
	path path
	flow roce.Flow
}

// read reads and serves up to one batch of packets, and reports whether it found any. The caller holds
// reading, but not the core's lock.
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

// serveBatch serves the n packets just read, or counts an error.
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

// pump reads and serves some batches of the NIC's packets. It reports whether it found any, and whether
// another goroutine is reading. The caller holds the core's lock, so pump does not wait for that
// goroutine; catchUp does.
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

// readBatches reads and serves up to catchUpReads batches, and reports whether it found any. The caller
// holds reading and the core's lock.
func (u *udpPort) readBatches() (read bool) {
	for k, left := 1, catchUpReads; left > 0 && k > 0 && !u.closed; left-- {
		k, _ = u.reader.Read() // an error recurs, in a read that counts it
		for i := range k {
			u.serve(u.reader.Datagram(i))
		}
		read = read || k > 0
	}
	return read
}

// catchUp reads all arrived packets if a timer is due, because they may answer it, and reports whether
// one is due. It waits for other readers, so the caller must not hold the core's lock.
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

// readArrived reads and serves the packets in the sockets, up to catchUpReads batches per port. It
// waits for other readers, so the caller must not hold the core's lock.
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

// serve handles a datagram, or a coalesced run of datagrams.
func (u *udpPort) serve(d *udp.Datagram) {
	u.udpNIC.link.order.received()
	if u.nic.closed {
		return
	}
	addr := udpAddr{d.From, d.Port}
	var from *udpSource
	if !u.sealed { // a sealed packet identifies its sender itself
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

// rxResult is the outcome of decoding a datagram.
type rxResult uint8

const (
	rxMalformed rxResult = iota // not a packet
	rxDamaged                   // a packet with a wrong ICRC
	rxIntact
)

// decode decodes a packet and checks its ICRC. A NIC that accepts header ICRCs accepts them from any
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
		u.packet.HeaderICRC = false // it may be from another kind of NIC, which sets reserved bits
		id, ok = from.flow.Check(b, &u.explain)
	}
	if !ok {
		return nil, id, rxDamaged
	}
	return payload, id, rxIntact
}

// serveDatagram passes a datagram to the NIC if it is an intact packet, with or without fill. Invalid
// fill may stem from another kind of NIC, which may set the bits arbitrarily, so the whole datagram is
// also tried.
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
	// Packets from NICs on this link were captured when sent.
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

// deliver passes a packet to the NIC, and first learns the reply route of an expected datagram.
func (u *udpPort) deliver(from *udpSource, p *packet) {
	port := from.addr.port
	if p.Opcode&roce.TransportMask == roce.UD && port < udp.FirstSourcePort && port != roce.Port && u.nic.expects(p) {
		u.learnReplyRoute(from, p.SrcQPN)
	}
	u.nic.receive(p)
}

// expects reports whether a QP accepts a datagram. Other datagrams must not determine reply routes.
func (n *NIC) expects(p *packet) bool {
	q := n.qps.get(p.DestQPN)
	return q != nil && q.typ == verbs.UD && receivable[q.state] && p.QKey == q.attr.QKey
}

// source returns the state of a packet source, nil if the address is invalid.
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

// addSource adds a source. A sender with many addresses makes the port forget other sources, which only
// costs time.
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

// replyPath returns the path to the NIC that sends from an address, or nil. A NIC with a receive port
// other than 4791 sends datagrams from that port.
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

// sends reports whether a NIC of the link sends from addr. Another process on the same address uses
// other ports.
func (l *UDPLink) sends(addr udpAddr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.senders[addr] != nil
}
