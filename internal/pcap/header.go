package pcap

import (
	"encoding/binary"
	"net/netip"
)

const (
	ip4Len = 20
	ip6Len = 40
	udpLen = 8

	protocolUDP = 17
	dontFrag    = 0x4000
)

// ipFields are the IP header fields that vary between packets.
type ipFields struct {
	id          uint16 // the identification of IPv4
	class, hops uint8  // in IPv4: TOS and TTL
}

// appendIPv4 appends the header of a packet of n bytes (RFC 791): no options, "don't
// fragment", and a checksum.
func appendIPv4(b []byte, src, dst netip.Addr, n int, f ipFields) []byte {
	begin := len(b)
	from, to := src.As4(), dst.As4()
	b = append(b, 0x45, f.class)
	b = binary.BigEndian.AppendUint16(b, uint16(n))
	b = binary.BigEndian.AppendUint16(b, f.id)
	b = binary.BigEndian.AppendUint16(b, dontFrag)
	b = append(b, f.hops, protocolUDP, 0, 0)
	b = append(b, from[:]...)
	b = append(b, to[:]...)
	binary.BigEndian.PutUint16(b[begin+10:], ^fold(add(0, b[begin:])))
	return b
}

// appendIPv6 appends the header of a packet of n bytes (RFC 8200).
func appendIPv6(b []byte, src, dst netip.Addr, n int, f ipFields) []byte {
	from, to := src.As16(), dst.As16()
	b = append(b, 0x60|f.class>>4, f.class<<4, 0, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(n-ip6Len))
	b = append(b, protocolUDP, f.hops)
	b = append(b, from[:]...)
	return append(b, to[:]...)
}

// appendUDP appends the UDP header for n bytes, without a checksum, which IPv4 allows.
func appendUDP(b []byte, src, dst uint16, n int) []byte {
	b = binary.BigEndian.AppendUint16(b, src)
	b = binary.BigEndian.AppendUint16(b, dst)
	b = binary.BigEndian.AppendUint16(b, uint16(n))
	return append(b, 0, 0)
}

// sumUDP writes the UDP checksum, which IPv6 requires (RFC 8200 section 8.1): over the addresses,
// length and protocol of the IP header, and all of udp.
func sumUDP(ip, udp []byte) {
	sum := add(uint64(len(udp))+protocolUDP, ip[8:ip6Len])
	s := ^fold(add(sum, udp))
	if s == 0 {
		s = 0xffff // 0 would disable the checksum
	}
	binary.BigEndian.PutUint16(udp[6:], s)
}

// add adds b to a sum of 16-bit words (RFC 1071).
func add(sum uint64, b []byte) uint64 {
	for ; len(b) >= 4; b = b[4:] {
		sum += uint64(binary.BigEndian.Uint32(b))
	}
	if len(b) >= 2 {
		sum += uint64(binary.BigEndian.Uint16(b))
		b = b[2:]
	}
	if len(b) == 1 {
		sum += uint64(b[0]) << 8
	}
	return sum
}

// fold reduces a sum to 16 bits.
func fold(sum uint64) uint16 {
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}
