package softnic

import (
	"net/netip"

	"ibverbx/internal/roce"
	"ibverbx/internal/udp"
	"ibverbx/verbs"
)

// catchUpReads is how many batches are read before timers count: what answers to them may be
// behind other packets.
const catchUpReads = 4

// read takes the packets that are there, up to a batch, and serves them, and reports whether
// there were any.
// The port's reading is held, the core's lock is not.
func (u *udpPort) read() bool {
	if u.closed {
		return false
	}
	n, err := u.reader.Read()
	c := u.nic.core
	if err != nil {
		c.mu.Lock()
		u.nic.stats.ReceiveErrors++
		c.mu.Unlock()
		return false
	}
	if n == 0 {
		return false
	}
	c.mu.Lock()
	u.batch = 0
	for i := range n {
		d := u.reader.Datagram(i)
		u.batch += len(d.Data)
		u.serve(d)
	}
	t := traits[u.packet.Opcode&roce.OperationMask]
	u.midway = t&(opIsSend|opIsWrite) != 0 && t&opEnds == 0
	u.served = true
	c.settle()
	u.served = false
	c.mu.Unlock()
	return true
}

// pump takes some batches of packets for every NIC. The core's lock is held, so nobody is waited
// for who reads; catchUp does that.
func (l *UDPLink) pump() (read, busy bool) {
	for _, n := range l.core.nics {
		u := n.udp
		if u.served {
			continue
		}
		if !u.reading.TryLock() {
			busy = true
			continue
		}
		for k, left := 1, catchUpReads; left > 0 && k > 0 && !u.closed; left-- {
			k, _ = u.reader.Read() // an error comes again, to those who count it
			for i := range k {
				u.serve(u.reader.Datagram(i))
			}
			read = read || k > 0
		}
		u.reading.Unlock()
	}
	return read, busy
}

// catchUp serves what has arrived for some NICs. Whoever reads is waited for, and the core's
// lock must not be held.
func catchUp(nics []*NIC) {
	for _, n := range nics {
		n.udp.reading.Lock()
		for left := catchUpReads; left > 0 && n.udp.read(); left-- {
		}
		n.udp.reading.Unlock()
	}
}

// serve takes datagrams of one sender apart and hands them to the NIC.
func (u *udpPort) serve(d *udp.Datagram) {
	if u.nic.closed {
		return
	}
	from := u.sender(udpSource{d.From, d.Port})
	if from == nil || len(d.Data) == 0 {
		u.nic.stats.Malformed++
		return
	}
	for b := d.Data; len(b) > 0; {
		size := min(d.Segment, len(b))
		u.serveOne(from, b[:size:size])
		b = b[size:]
	}
}

// serveOne hands one datagram to the NIC, if it is a packet and unharmed.
func (u *udpPort) serveOne(from *udpSender, b []byte) {
	stats := &u.nic.stats
	p := &u.packet
	payload, reason := p.Decode(b)
	switch {
	case reason == roce.Congestion:
	case reason != roce.OK:
		stats.Malformed++
		return
	}
	id, ok := from.flow.Check(b, &u.link.explain)
	switch {
	case !ok:
		stats.BadICRC++
		return
	case reason == roce.Congestion:
		stats.CongestionNotices++
		return
	case !roce.PKeysMatch(p.PKey, roce.PKeyDefault):
		stats.BadPKey++
		return
	}
	if u.link.cfg.Capture != nil {
		u.captureReceived(from, id, b)
	}
	p.path = &from.path
	if len(payload) == 0 {
		p.noPayload()
	} else {
		p.setPayload(payload)
	}
	if p.Opcode&roce.TransportMask == roce.UD && from.source.port < udp.FirstSourcePort && from.source.port != roce.Port && u.nic.expects(p) {
		u.hear(from, p.SrcQPN)
	}
	u.nic.receive(p)
}

// expects reports whether a datagram is for a QP that takes it: what others send must not say
// where answers go.
func (n *NIC) expects(p *packet) bool {
	q := n.qps.get(p.DestQPN)
	return q != nil && q.typ == verbs.UD && receivable[q.state] && p.QKey == q.attr.QKey
}

// sender returns what is remembered about a source of packets, nil if it cannot be one.
func (u *udpPort) sender(s udpSource) *udpSender {
	if u.last != nil && u.last.source == s {
		return u.last
	}
	from := u.sources[s]
	if from == nil {
		if from = u.meet(s); from == nil {
			return nil
		}
	}
	u.last = from
	return from
}

// meet remembers a new source. Whoever sends from many addresses makes the port forget others,
// which costs time and nothing else.
func (u *udpPort) meet(s udpSource) *udpSender {
	addr := netip.AddrPortFrom(s.gid.Addr(), s.port)
	flow, err := roce.NewFlow(addr, u.conn.Addr())
	if err != nil {
		return nil
	}
	if len(u.sources) >= maxUDPSenders {
		clear(u.sources)
	}
	own := u.nic.gids[0].GID
	from := &udpSender{
		source: s, flow: flow, addr: addr,
		path: path{sgid: s.gid, dgid: own, attr: verbs.AHAttr{DGID: own, HopLimit: 64, Port: 1}},
	}
	u.sources[s] = from
	return from
}

// sends reports whether packets of the NIC leave from a port. Another process on the same
// address has other ports.
func (u *udpPort) sends(port uint16) bool {
	for socket := range u.conn.Sockets() + 1 {
		if u.conn.SourcePort(socket) == port {
			return true
		}
	}
	return false
}

func (u *udpPort) captureReceived(from *udpSender, id uint16, b []byte) {
	if n := u.link.core.nics[from.path.sgid]; n != nil && n.udp.sends(from.source.port) {
		return // was captured when it was sent
	}
	u.parts[0] = b
	u.link.cfg.Capture.Packet(wallClock(), from.addr, u.conn.Addr(), id, u.parts[:]...)
}
