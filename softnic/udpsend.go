package softnic

import (
	"net/netip"

	"ibverbx/internal/roce"
)

func (l *UDPLink) send(from *NIC, p *packet) {
	switch {
	case p.path.way == nil:
		from.stats.Unroutable++
	case !from.portUp:
		from.stats.PortDownDrops++
	case l.core.timed:
		l.carry(l.direction(from, p.path.dgid), nil, from, nil, p)
	default:
		from.udp.write(p, false)
	}
}

// wayOf returns the way of a packet.
func (u *udpPort) wayOf(p *packet) *udpWay {
	if way := p.path.way; !p.path.datagrams || !way.guessed || len(u.heard) == 0 {
		return way
	}
	if way := u.heard[udpSpeaker{p.path.dgid, p.DestQPN}]; way != nil {
		return way
	}
	return p.path.way
}

// land puts a packet on the wire that the layer of faults has let through.
func (l *UDPLink) land(f *flight) {
	switch {
	case f.from.closed:
	case f.dir.cut:
		f.dir.stats.Cut++
	default:
		f.dir.stats.Delivered++
		f.from.udp.write(&f.packet, f.corrupt)
	}
	l.recycle(f)
}

// write adds a packet to those that leave with the next flush. Its payload is copied next to its
// headers while it is summed up, so that the ICRC is that of the bytes that leave, whatever the
// program does to its memory, and so that the kernel has one piece to copy instead of two per packet: for
// long messages that is faster than to refer to the payload (docs/performance.md).
func (u *udpPort) write(p *packet, corrupt bool) {
	if !u.dirty {
		u.dirty = true
		u.link.dirty = append(u.link.dirty, u)
	}
	way, length := u.wayOf(p), int(p.length)
	size := roce.DatagramLen(p.Opcode, length)
	b, k := u.writer.Next(way.dest, way.socket, size)
	id, n := uint16(k), p.Encode(b, length)
	sum := way.flow.Begin(b[:n], size, id)
	for k := range p.numSegs {
		sum = sum.Copy(b[n:], p.segs[k])
		n += len(p.segs[k])
	}
	sum.Finish(b[n:], roce.Pad(length))
	if corrupt {
		b[size-1] ^= 1
	}
	if u.link.cfg.Capture != nil {
		u.captureSent(way, id, b)
	}
}

// flush hands the collected packets to the kernel.
func (u *udpPort) flush() {
	u.dirty = false
	u.nic.stats.SendDrops += uint64(u.writer.Flush())
}

func (u *udpPort) captureSent(way *udpWay, id uint16, b []byte) {
	u.parts[0] = b
	from := netip.AddrPortFrom(u.conn.Addr().Addr(), u.conn.SourcePort(way.socket))
	u.link.cfg.Capture.Packet(wallClock(), from, way.dest.Addr(), id, u.parts[:]...)
}
