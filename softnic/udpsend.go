package softnic

import "ibverbx/internal/roce"

func (w *udpWire) send(from *NIC, p *packet) {
	switch {
	case p.path.way == nil:
		from.stats.Unroutable++
	case !from.portUp:
		from.stats.PortDownDrops++
	case w.queue != nil:
		w.faults.carry(w.faults.direction(toward(from, p.path.dgid)), nil, from, nil, p)
	default:
		from.port(p.path.sealing).write(p, false)
	}
}

// land writes a packet that has passed the layer of faults.
func (w *udpWire) land(f *flight) {
	switch {
	case f.from.closed:
	case f.dir.cut:
		f.dir.stats.Cut++
	default:
		f.dir.stats.Delivered++
		f.from.port(f.packet.path.sealing).write(&f.packet, f.corrupt)
	}
	w.faults.recycle(f)
}

// flush hands all collected packets to the kernel, unless somebody collects more. It is called before the
// lock is released.
func (w *udpWire) flush() {
	if w.corks == 0 {
		w.drain()
	}
}

// drain hands all collected packets to the kernel.
func (w *udpWire) drain() {
	if !w.dirty {
		return
	}
	w.dirty = false
	for _, u := range w.nic.ports {
		w.nic.stats.SendDrops += uint64(u.writer.Flush())
	}
}

// write adds a packet to those that leave with the next flush. It copies the payload next to the
// headers in the same pass that computes the ICRC. So the ICRC matches the bytes that leave even
// if the program writes its memory meanwhile, and the kernel copies one piece per packet instead
// of two. For long messages that is faster than referring to the payload (docs/performance.md).
func (u *udpPort) write(p *packet, corrupt bool) {
	u.wire.dirty = true
	u.wire.link.order.sent()
	if p.path.sealing != nil {
		u.seal(p, corrupt)
		return
	}
	way, length := u.wayOf(p), int(p.length)
	size := roce.DatagramLen(p.Opcode, length)
	most := size
	if length == u.mtu.Bytes() {
		most = u.slot
	}
	b, k, fill := u.writer.NextIn(way.dest, way.socket, size, most)
	p.Fill = uint8(fill / 4)
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
	if u.wire.link.captures() {
		from := udpAddr{u.nic.gids[0].GID, u.conn.SourcePort(way.socket)}
		u.captureWire(from.addrPort(), way.dest.Addr(), id, way.dest.Marks(), b)
		u.capturePlain(from.addrPort(), way.dest.Addr(), id, way.dest.Marks(), b[:size-icrcLen])
	}
}
