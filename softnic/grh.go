package softnic

import (
	"encoding/binary"

	"ibverbx/verbs"
)

// putGRH writes the 40 bytes in front of the payload of a UD receive: a GRH, or over IPv4 an IPv4
// header in the second half (RoCE v2, annex A17.4.5.2).
func putGRH(b *[verbs.GRHLen]byte, p *path, payload uint32) {
	clear(b[:])
	hop := p.attr.HopLimit
	if p.dgid.Addr().Is4() {
		const headers = 20 + 8 + 12 + 8 + 4 // IP, UDP, BTH, DETH, ICRC
		h := b[20:]
		h[0] = 0x45
		h[1] = p.attr.TrafficClass
		binary.BigEndian.PutUint16(h[2:], uint16(headers+payload))
		binary.BigEndian.PutUint16(h[6:], 0x4000) // DF
		h[8] = hop
		h[9] = 17 // UDP
		copy(h[12:16], p.sgid[12:])
		copy(h[16:20], p.dgid[12:])
		binary.BigEndian.PutUint16(h[10:], ipChecksum(h))
		return
	}
	const headers = 8 + 12 + 8 + 4 // UDP, BTH, DETH, ICRC
	binary.BigEndian.PutUint32(b[0:], 6<<28|uint32(p.attr.TrafficClass)<<20|p.attr.FlowLabel&0xfffff)
	binary.BigEndian.PutUint16(b[4:], uint16(headers+payload))
	b[6] = 17
	b[7] = hop
	copy(b[8:24], p.sgid[:])
	copy(b[24:40], p.dgid[:])
}

// ipChecksum returns the checksum of a 20-byte IPv4 header whose checksum field is zero.
func ipChecksum(h []byte) uint16 {
	var sum uint32
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(h[i:]))
	}
	sum = sum&0xffff + sum>>16
	sum = sum&0xffff + sum>>16
	return ^uint16(sum)
}
