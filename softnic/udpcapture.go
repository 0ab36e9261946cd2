package softnic

import (
	"net/netip"

	"ibverbx/internal/roce"
	"ibverbx/internal/udp"
)

// reservedBits are the bits of byte 4 of a BTH that hold the length of the fill.
const reservedBits = 0x3f

// captures reports whether any Capture takes packets.
func (l *UDPLink) captures() bool { return l.cfg.Capture != nil || l.cfg.CapturePlain != nil }

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
	flow.Seal(l.plain, id)
	u.parts[0] = l.plain
	l.cfg.CapturePlain.Packet(wallClock(), src, dst, id, m.Class, m.Hops, u.parts[:]...)
}
