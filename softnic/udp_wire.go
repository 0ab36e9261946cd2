package softnic

import (
	"maps"
	"net/netip"
	"sync/atomic"

	"ibverbx/internal/ntcopy"
	"ibverbx/internal/roce"
	"ibverbx/internal/udp"
	"ibverbx/verbs"
)

// udpWire is what a NIC on a UDPLink does not share with the others: a core, and so a lock, timers and a
// helper, and the faults on the way out.
type udpWire struct {
	core
	link *UDPLink
	nic  *NIC
	// alone says that the NIC may wait for a device or a neighbor while it serves packets: see udpWatch.
	alone atomic.Bool
	// dirty says that the NIC has packets to flush.
	dirty bool
	// lent is set if collected packets refer to the program's memory.
	lent bool
	// corks counts the goroutines that collect packets: see verbs.Corker.
	corks        int
	faults       faults
	neighborhood neighborhood
	// own are the addresses that the host had when the NIC was opened.
	own []verbs.GID
	// whole is a captured packet that has got a full ICRC.
	whole []byte
	// groups are the multicast groups that the NIC has joined.
	groups []*group
}

// newWire makes the wire of a NIC. The link's mu is held.
func (l *UDPLink) newWire(n *NIC) *udpWire {
	t := linkTraits{kind: "udp", window: uint32(l.cfg.Window), readAhead: udpReadAhead, probeAfter: udpProbeAfter}
	if t.window == 0 {
		t.window, t.windowBytes = defaultUDPWindow, defaultUDPInFlight
	}
	w := &udpWire{link: l, nic: n, own: ownAddrs()}
	w.alone.Store(l.cfg.SharedMemory)
	w.init(w, t, nil)
	w.nonce, w.count, w.wire = l.nonce, l.count, w
	w.faults.init(&w.core, l.cfg.Seed+uint64(l.count), udpQueue, l.cfg.Impairment, w.land)
	if l.cfg.Impairment != (Impairment{}) {
		w.queue = &w.faults
	}
	return w
}

// attach plugs n into the link, with a wire of its own.
func (l *UDPLink) attach(n *NIC) error {
	w, err := l.admit(n)
	if err != nil {
		return err
	}
	if err := w.attach(n); err != nil {
		l.detach(n)
		return err
	}
	return nil
}

// admit gives n an address that no other NIC of the link has, and a wire.
func (l *UDPLink) admit(n *NIC) (*udpWire, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !n.cfg.Addr.IsValid() {
		addr, err := l.address()
		if err != nil {
			return nil, err
		}
		n.cfg.Addr = addr
	}
	gid := verbs.GIDFromAddr(n.cfg.Addr.Unmap())
	if l.nics[gid] != nil {
		return nil, verbs.Invalidf("Config.Addr %s belongs to another NIC on this link", n.cfg.Addr)
	}
	l.nics[gid] = n
	w := l.newWire(n)
	l.count++
	return w, nil
}

// remember notes from where a port sends.
func (l *UDPLink) remember(u *udpPort) {
	l.mu.Lock()
	defer l.mu.Unlock()
	gid := verbs.GIDFromAddr(u.conn.Addr().Addr())
	for socket := range u.conn.Sockets() + 1 {
		l.senders[udpAddr{gid, u.conn.SourcePort(socket)}] = u.nic
	}
}

// detach forgets n.
func (l *UDPLink) detach(n *NIC) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, u := range n.ports {
		l.watch.set(u, false)
	}
	maps.DeleteFunc(l.nics, func(_ verbs.GID, other *NIC) bool { return other == n })
	maps.DeleteFunc(l.senders, func(_ udpAddr, other *NIC) bool { return other == n })
}

// reservedBits are the bits of byte 4 of a BTH that hold the length of the fill.
const reservedBits = 0x3f

// captures reports whether any Capture takes packets.
func (l *UDPLink) captures() bool { return l.cfg.Capture != nil || l.cfg.CapturePlain != nil }

// capture hands plain packet p, which is b without fill, to both Captures of the link. It does not change b.
func (u *udpPort) capture(src, dst netip.AddrPort, flow roce.Flow, p *packet, id uint16, m udp.Marks, b []byte) {
	u.capturePlain(src, dst, id, m, b[:len(b)-icrcLen])
	if p.HeaderICRC {
		w := u.wire
		w.whole = append(w.whole[:0], b...)
		b = w.whole
		flow.Restore(b, id)
	}
	u.captureWire(src, dst, id, m, b)
}

// captureWire hands a packet to the link's Capture, which takes one at a time.
func (u *udpPort) captureWire(src, dst netip.AddrPort, id uint16, m udp.Marks, b []byte) {
	l := u.wire.link
	if l.cfg.Capture == nil {
		return
	}
	u.parts[0] = b
	l.capturing.Lock()
	defer l.capturing.Unlock()
	l.cfg.Capture.Packet(wallClock(), src, dst, id, m.Class, m.Hops, u.parts[:]...)
}

// capturePlain hands a packet to the link's CapturePlain. b is the packet from the BTH to the pad. It is not changed.
func (u *udpPort) capturePlain(src, dst netip.AddrPort, id uint16, m udp.Marks, b []byte) {
	l := u.wire.link
	if l.cfg.CapturePlain == nil {
		return
	}
	dst = netip.AddrPortFrom(dst.Addr(), roce.Port)
	flow, err := roce.NewFlow(src, dst)
	if err != nil {
		return // the addresses are of two families: no such packet is sent
	}
	l.capturing.Lock()
	defer l.capturing.Unlock()
	l.plain = append(l.plain[:0], b...)
	l.plain = append(l.plain, make([]byte, icrcLen)...)
	l.plain[4] &^= reservedBits
	flow.Restore(l.plain, id)
	u.parts[0] = l.plain
	l.cfg.CapturePlain.Packet(wallClock(), src, dst, id, m.Class, m.Hops, u.parts[:]...)
}

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

// flush hands all collected packets to the kernel, unless a program collects more and none refers to its
// memory. It is called before the lock is released, so memory may be freed afterwards.
func (w *udpWire) flush() {
	if w.corks == 0 || w.lent {
		w.drain()
	}
}

// drain hands all collected packets to the kernel.
func (w *udpWire) drain() {
	if !w.dirty {
		return
	}
	w.dirty, w.lent = false, false
	for _, u := range w.nic.ports {
		w.nic.stats.SendDrops += uint64(u.writer.Flush())
	}
}

// copyThenSum is the minimum payload for copying and summing in one pass. A shorter payload is summed
// together with the headers, in one call: with that, a WRITE of 8 bytes takes 476 instead of 530 ns
// (BenchmarkUDPWrite, Cascade Lake).
const copyThenSum = 128

// lendMin is the minimum payload per SGE for a packet that refers to it. Preparing and reading a piece of
// memory costs the kernel as much as copying 1 KiB.
const lendMin = 2 << 10

// mayLend reports whether packets may refer to the program's memory. Captures need the whole packet, and an
// Impairment delays packets until the memory may have been freed.
func (u *udpPort) mayLend() bool { return u.wire.queue == nil && !u.wire.link.captures() }

// lend writes a packet whose ICRC does not cover the payload. The kernel copies the payload from its regions.
// As on hardware, a program that modifies it meanwhile changes the sent bytes.
func (u *udpPort) lend(p *packet, way *udpWay, size, most int) {
	u.wire.lent = true
	pad := roce.Pad(int(p.length))
	headers := roce.HeaderLen(p.Opcode)
	head, tail, k, fill := u.writer.NextWith(way.dest, way.socket, headers, pad+icrcLen, most, p.segs[:p.numSegs])
	p.Fill, p.HeaderICRC = uint8(fill/4), true
	p.Encode(head, int(p.length))
	way.flow.Begin(head, size, uint16(k)).FinishHeaders(tail, pad)
}

// write adds a packet to those that leave with the next flush. It copies the payload next to the
// headers, in the same pass that computes a full ICRC. So the ICRC matches the bytes that leave even
// if the program writes its memory meanwhile, and the kernel copies one piece per packet instead
// of two.
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
	if way.headerICRC && p.registered && p.numSegs > 0 && length >= int(p.numSegs)*lendMin && u.mayLend() {
		u.lend(p, way, size, most)
		return
	}
	b, k, fill := u.writer.NextIn(way.dest, way.socket, size, most)
	p.Fill, p.HeaderICRC = uint8(fill/4), way.headerICRC
	id, n := uint16(k), p.Encode(b, length)
	switch {
	case way.headerICRC:
		sum := way.flow.Begin(b[:n], size, id)
		for k := range p.numSegs {
			n += ntcopy.Copy(b[n:], p.segs[k])
		}
		sum.FinishHeaders(b[n:], roce.Pad(length))
	case length < copyThenSum:
		for k := range p.numSegs {
			n += copy(b[n:], p.segs[k])
		}
		way.flow.Begin(b[:n], size, id).Finish(b[n:], roce.Pad(length))
	default:
		sum := way.flow.Begin(b[:n], size, id)
		for k := range p.numSegs {
			sum = sum.Copy(b[n:], p.segs[k])
			n += len(p.segs[k])
		}
		sum.Finish(b[n:], roce.Pad(length))
	}
	if corrupt {
		b[size-1] ^= 1
	}
	if u.wire.link.captures() {
		from := udpAddr{u.nic.gids[0].GID, u.conn.SourcePort(way.socket)}
		u.capture(from.addrPort(), way.dest.Addr(), way.flow, p, id, way.dest.Marks(), b)
	}
}
