package softnic

import (
	"time"

	"ibverbx/internal/ntcopy"
	"ibverbx/internal/roce"
	"ibverbx/internal/seal"
	"ibverbx/internal/udp"
)

const (
	// sealedPort is the first UDP port tried for sealed packets. If it is occupied, NICs use the next
	// free one.
	sealedPort = 14791
	// icrcLen is the length of an ICRC. Sealed packets do not carry one.
	icrcLen = 4
	// sealOverhead is the difference in length between a seal and an ICRC.
	sealOverhead = seal.Overhead - icrcLen
	// sealTick is the interval between checks of the age of all keys.
	sealTick = time.Minute
)

// plugSealed opens the sockets for sealed packets on first use.
func (w *udpNIC) plugSealed(n *NIC) error {
	if n.sealed != nil {
		return nil
	}
	u, err := w.openPort(n, sealedPort, sealOverhead)
	if err != nil {
		return err
	}
	n.sealed = u
	n.sealings.init(newRand(0), 1, maxPD)
	return nil
}

// tick lets the NIC's associations rotate their keys.
func (u *udpPort) tick() {
	c := u.nic.core
	c.mu.Lock()
	defer c.mu.Unlock()
	if u.nic.closed {
		return
	}
	for g := range u.nic.sealings.all() {
		for _, a := range g.peers {
			if a != nil {
				a.Tick()
			}
		}
	}
	u.ticker.Reset(sealTick)
}

// seal writes a packet for an association. It copies the payload into the batch first, because the
// bytes must not change during encryption.
func (u *udpPort) seal(p *packet, corrupt bool) {
	route, length := p.path.route, int(p.length)
	size := roce.DatagramLen(p.Opcode, length) + sealOverhead
	most := size
	if length == u.mtu.Bytes() {
		most = u.slot
	}
	b, k, fill := u.writer.NextIn(route.dest, route.socket, size, most)
	b = b[:size+fill]
	carried := b[seal.HeaderLen : len(b)-seal.TagLen]
	p.Fill, p.HeaderICRC = uint8(fill/4), false
	n := p.Encode(carried, length)
	for k := range p.numSegs {
		n += ntcopy.Copy(carried[n:], p.segs[k])
	}
	clear(carried[n:]) // pad and fill
	if u.udpNIC.link.captures() {
		from := udpAddr{u.nic.gids[0].GID, u.conn.SourcePort(route.socket)}
		u.capturePlain(from.addrPort(), route.dest.Addr(), uint16(k), route.dest.Marks(), carried[:len(carried)-fill])
	}
	route.assoc.Seal(b, uint8(route.socket))
	if corrupt {
		b[len(b)-1] ^= 1
	}
	if u.udpNIC.link.captures() {
		from := udpAddr{u.nic.gids[0].GID, u.conn.SourcePort(route.socket)}
		u.captureWire(from.addrPort(), route.dest.Addr(), uint16(k), route.dest.Marks(), b)
	}
}

// open decrypts a sealed packet in place and passes it to the NIC if it is intact and new.
func (u *udpPort) open(from udpAddr, b []byte) {
	stats, p := &u.nic.stats, &u.packet
	index, ok := seal.Index(b)
	if !ok {
		stats.Malformed++
		return
	}
	g := u.nic.sealings.get(index >> 8)
	seat := index & 0xff
	if g == nil || seat >= seal.Seats || g.peers[seat] == nil || g.seal.over.Load() {
		stats.Seals.Unknown++
		return
	}
	show := u.udpNIC.link.captures() && !u.udpNIC.link.sends(from)
	if show {
		u.captureWire(from.addrPort(), u.conn.Addr(), 0, udp.Marks{Hops: udp.DefaultHops}, b)
	}
	p.assoc = g.peers[seat]
	carried, v := p.assoc.Open(b)
	switch v {
	case seal.Opened:
	case seal.Replayed:
		stats.Seals.Replayed++
		return
	case seal.Old:
		stats.Seals.Old++
		return
	default:
		stats.Seals.Bad++
		return
	}
	// The decoder expects an ICRC but does not check it. The tag occupies its place.
	whole := roce.Trim(b[seal.HeaderLen : seal.HeaderLen+len(carried)+icrcLen])
	payload, r := p.Decode(whole)
	switch {
	case r == roce.Congestion:
		stats.CongestionNotices++
	case r != roce.OK:
		stats.Malformed++
	case !roce.PKeysMatch(p.PKey, roce.PKeyDefault):
		stats.BadPKey++
	default:
		if show {
			u.capturePlain(from.addrPort(), u.conn.Addr(), 0, udp.Marks{Hops: udp.DefaultHops}, whole[:len(whole)-icrcLen])
		}
		p.path = &p.assoc.from
		p.setPayload(payload)
		u.nic.receive(p)
	}
}
