package verbs

import "encoding/binary"

// GRHLen is the number of bytes reserved for the GRH at the start of a UD receive buffer.
const GRHLen = 40

// GRH is a global routing header as a UD receive delivers it. Over IPv4 the first
// half of the area is undefined and the second half holds the IPv4 header (RoCE v2
// annex A17). ParseGRH handles both.
type GRH struct {
	SGID, DGID   GID    // source and destination
	FlowLabel    uint32 // 20 bits, 0 over IPv4
	TrafficClass uint8  // IPv4: TOS
	HopLimit     uint8  // IPv4: TTL
}

// ParseGRH parses the first 40 bytes of a UD receive buffer. It returns ErrInvalid if they are neither a
// GRH nor an IPv4 header.
func ParseGRH(b []byte) (GRH, error) {
	if len(b) < GRHLen {
		return GRH{}, Invalidf("GRH area of %d bytes, want %d", len(b), GRHLen)
	}
	if g, ok := parseIPv4GRH(b[20:40]); ok {
		return g, nil
	}
	w := binary.BigEndian.Uint32(b)
	if w>>28 != 6 {
		return GRH{}, Invalidf("GRH area holds neither a GRH nor an IPv4 header (first word %#08x)", w)
	}
	g := GRH{FlowLabel: w & 0xfffff, TrafficClass: uint8(w >> 20), HopLimit: b[7]}
	copy(g.SGID[:], b[8:24])
	copy(g.DGID[:], b[24:40])
	return g, nil
}

// parseIPv4GRH reads an IPv4 header. The checksum distinguishes it from the second
// half of a GRH.
func parseIPv4GRH(b []byte) (GRH, bool) {
	if b[0] != 0x45 {
		return GRH{}, false
	}
	var sum uint32
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	sum = sum&0xffff + sum>>16
	sum = sum&0xffff + sum>>16
	if sum != 0xffff {
		return GRH{}, false
	}
	g := GRH{TrafficClass: b[1], HopLimit: b[8]}
	g.SGID[10], g.SGID[11] = 0xff, 0xff
	g.DGID[10], g.DGID[11] = 0xff, 0xff
	copy(g.SGID[12:], b[12:16])
	copy(g.DGID[12:], b[16:20])
	return g, true
}

// Reply returns the address vector for a reply to the sender.
func (g GRH) Reply(port uint8, sgidIndex int) AHAttr {
	return AHAttr{DGID: g.SGID, SGIDIndex: sgidIndex, FlowLabel: g.FlowLabel, HopLimit: 64, TrafficClass: g.TrafficClass, Port: port}
}
