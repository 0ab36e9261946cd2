package softnic

import (
	"net/netip"

	"ibverbx/internal/roce"
)

// udpCopyBelow is the payload below which bytes are copied next to their headers: a vector
// of its own costs the kernel more.
const udpCopyBelow = 512

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
	if way := u.heard[udpSpeaker{p.path.dgid, p.destQPN}]; way != nil {
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
	l.flush() // the buffer of f is used again
	l.recycle(f)
}

// write adds a packet to those that leave with the next flush. Its payload is referred to, not
// copied, unless it is short, or an answer to a READ: others may change that memory at any
// time, and then the ICRC would be wrong.
func (u *udpPort) write(p *packet, corrupt bool) {
	if !u.dirty {
		u.dirty = true
		u.link.dirty = append(u.link.dirty, u)
	}
	way, h, length := u.wayOf(p), &u.out, int(p.length)
	headerOf(h, p)
	size := roce.DatagramLen(p.opcode, length)
	if length < udpCopyBelow || p.isReadAnswer() {
		id := uint16(u.writer.Begin(way.dest, way.socket, size, 0, size))
		b := u.writer.Take(size)
		n := h.Encode(b, length)
		for k := range p.numSegs {
			n += copy(b[n:], p.segs[k])
		}
		clear(b[n:])
		way.flow.Seal(b, id)
		if corrupt {
			b[size-1] ^= 1
		}
		if u.link.cfg.Capture != nil {
			u.parts[0] = b
			u.captureSent(way, id, u.parts[:1])
		}
		return
	}
	u.writeParts(p, way, size, corrupt)
}

// writeParts is write for a payload that is referred to.
func (u *udpPort) writeParts(p *packet, way *udpWay, size int, corrupt bool) {
	pad, headers := roce.Pad(int(p.length)), roce.HeaderLen(p.opcode)
	id := uint16(u.writer.Begin(way.dest, way.socket, size, int(p.numSegs), headers+roce.MaxTail))
	head := u.writer.Take(headers)
	u.out.Encode(head, int(p.length))
	sum := way.flow.Begin(head, size, id)
	for k := range p.numSegs {
		u.writer.Attach(p.segs[k])
		sum = sum.Add(p.segs[k])
	}
	tail := u.writer.Take(size - headers - int(p.length))
	sum.Finish(tail, pad)
	if corrupt {
		tail[len(tail)-1] ^= 1
	}
	if u.link.cfg.Capture != nil {
		u.parts[0] = head
		n := copy(u.parts[1:], p.segs[:p.numSegs])
		u.parts[n+1] = tail
		u.captureSent(way, id, u.parts[:n+2])
	}
}

// flush hands the collected packets to the kernel.
func (u *udpPort) flush() {
	u.dirty = false
	u.nic.stats.SendDrops += uint64(u.writer.Flush())
}

func (u *udpPort) captureSent(way *udpWay, id uint16, parts [][]byte) {
	from := netip.AddrPortFrom(u.conn.Addr().Addr(), u.conn.SourcePort(way.socket))
	u.link.cfg.Capture.Packet(wallClock(), from, way.dest.Addr(), id, parts...)
}
