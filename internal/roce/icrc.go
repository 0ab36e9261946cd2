package roce

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"sync/atomic"
)

// ErrFlow is returned by NewFlow for addresses of different families.
var ErrFlow = errors.New("roce: not the two ends of a flow")

// The ICRC is the Ethernet CRC-32 over the packet from its first network header on. Fields that a
// router may change count as ones, and eight bytes of ones replace InfiniBand's LRH (IBTA volume 1,
// section 7.8.1 and annex A17.3.3). It is the last four bytes of the datagram, low byte first.
// Below, ** is a byte of ones.
//
//	IPv4   0 | **  **  **  **  **  **  **  ** |
//	       8 | 45 | ToS ** | total length     |
//	      12 | identification | 40 | 00       |   flags: don't fragment
//	      16 | TTL ** | 11 | checksum **  **  |
//	      20 | source address                 |
//	      24 | destination address            |
//	UDP   28 | source port | destination port |
//	      32 | length      | checksum **  **  |
//	BTH   36 | opcode | flags | P_Key         |
//	      40 | **  | destination QP           |   the byte of FECN and BECN
//
//	IPv6   0 | **  **  **  **  **  **  **  ** |
//	       8 | 6* | **  **  **                |   class and flow label are ones
//	      12 | payload length | 11 | hops **  |
//	      16 | source address, 16 bytes       |
//	      32 | destination address, 16 bytes  |
//	UDP   48 | source port | destination port |
//	      52 | length      | checksum **  **  |
//	BTH   56 | as above                       |
const (
	lrhLen = 8
	ip4Len = 20
	ip6Len = 40
	udpLen = 8

	prefix4 = lrhLen + ip4Len + udpLen
	prefix6 = lrhLen + ip6Len + udpLen

	protocolUDP = 17
	dontFrag    = 0x40
)

// Flow is the part of the ICRC that all packets from one address and port to another share: the IP
// and UDP headers. It is an eight-byte value. Senders and receivers keep one per peer. The zero
// Flow is not valid.
//
// IPv4 packets must not have options and must have "don't fragment" set, as annex A17 requires.
type Flow struct {
	seed uint32
	ipv6 bool
}

// NewFlow returns the flow of packets from src to dst. It allocates only on failure. IPv4 addresses
// may be in IPv6 form. Zones are ignored.
func NewFlow(src, dst netip.AddrPort) (Flow, error) {
	from, to := src.Addr().Unmap(), dst.Addr().Unmap()
	if !from.IsValid() || from.BitLen() != to.BitLen() {
		return Flow{}, fmt.Errorf("%w: %v and %v: want two IPv4 or two IPv6 addresses", ErrFlow, src, dst)
	}
	var b [prefix6]byte
	for i := range b {
		b[i] = 0xff
	}
	if from.Is6() {
		s, d := from.As16(), to.As16()
		b[8], b[12], b[13], b[14] = 0x6f, 0, 0, protocolUDP
		copy(b[16:], s[:])
		copy(b[32:], d[:])
		putUDP(b[48:], src.Port(), dst.Port())
		return Flow{seed: update(0, b[:]), ipv6: true}, nil
	}
	s, d := from.As4(), to.As4()
	b[8], b[17] = 0x45, protocolUDP
	b[10], b[11], b[12], b[13], b[14], b[15] = 0, 0, 0, 0, dontFrag, 0
	copy(b[20:], s[:])
	copy(b[24:], d[:])
	putUDP(b[28:], src.Port(), dst.Port())
	return Flow{seed: update(0, b[:prefix4])}, nil
}

// putUDP writes the UDP header for the seed of a flow, with length 0.
func putUDP(b []byte, src, dst uint16) {
	binary.BigEndian.PutUint16(b, src)
	binary.BigEndian.PutUint16(b[2:], dst)
	b[4], b[5] = 0, 0
}

// IPv6 reports whether the flow uses IPv6. Its ICRC check is exact, because IPv6 lacks an
// identification.
func (f Flow) IPv6() bool { return f.ipv6 }

// Sum is the ICRC of the packet bytes added so far.
type Sum uint32

// Begin starts the ICRC of a datagram with its headers, as written by Encode. length is the
// datagram length, as returned by DatagramLen. id is the identification of the IPv4 header; IPv6
// ignores it.
func (f Flow) Begin(headers []byte, length int, id uint16) Sum {
	// CRC is linear, so each field that differs from the seed's adds its own difference. The byte that
	// counts as ones is added in advance in the same way.
	c := f.seed ^ reserved[headers[bthECN]]
	if f.ipv6 {
		c ^= ipv6Lengths[length>>2]
	} else {
		c ^= ipv4Lengths[length>>2] ^ identification.of(id)
	}
	return Sum(checksum(c, headers))
}

// Add adds the next bytes of the datagram. Parts of at least 256 bytes, in multiples of sixteen, are
// the fastest.
func (s Sum) Add(b []byte) Sum { return Sum(checksum(uint32(s), b)) }

// Copy copies the next bytes of the datagram to dst, which must not be shorter than src, and adds
// the copied bytes, even if src changes meanwhile.
func (s Sum) Copy(dst, src []byte) Sum { return Sum(checksumCopy(uint32(s), dst[:len(src)], src)) }

// Finish writes pad zero bytes and the ICRC to the beginning of tail and returns their number. tail
// must have space for MaxTail bytes.
func (s Sum) Finish(tail []byte, pad int) int {
	clear(tail[:pad])
	return s.Add(tail[:pad]).FinishHeaders(tail, pad)
}

// FinishHeaders is Finish for a sum of the headers alone, of a packet with HeaderICRC: the ICRC does
// not cover the pad.
func (s Sum) FinishHeaders(tail []byte, pad int) int {
	clear(tail[:pad])
	binary.LittleEndian.PutUint32(tail[pad:], uint32(s))
	return pad + icrcLen
}

// ICRC returns the expected ICRC of a datagram. It ignores the last four bytes. Decode must accept
// the length of the datagram.
func (f Flow) ICRC(datagram []byte, id uint16) uint32 {
	return uint32(f.Begin(datagram[:len(datagram)-icrcLen], len(datagram), id))
}

// Received returns the ICRC stored in a datagram.
func Received(datagram []byte) uint32 {
	return binary.LittleEndian.Uint32(datagram[len(datagram)-icrcLen:])
}

// Seal writes the ICRC into the last four bytes of a datagram that is otherwise complete.
func (f Flow) Seal(datagram []byte, id uint16) {
	binary.LittleEndian.PutUint32(datagram[len(datagram)-icrcLen:], f.ICRC(datagram, id))
}

// Check reports whether the ICRC of a datagram is valid, and for which identification. Over IPv6
// the check is exact and id is 0. Over IPv4, [Explainer] finds the identification. An invalid
// length always fails.
func (f Flow) Check(datagram []byte, e *Explainer) (id uint16, ok bool) {
	if !validLength(len(datagram)) {
		return 0, false
	}
	return f.CheckFirst(datagram, len(datagram)-icrcLen, 0, e)
}

// CheckFirst is Check for an ICRC that covers the headers before the datagram and its first n bytes. It is
// fastest if the identification is guess. Decode must accept the length of the datagram.
func (f Flow) CheckFirst(datagram []byte, n int, guess uint16, e *Explainer) (id uint16, ok bool) {
	received, computed := Received(datagram), uint32(f.Begin(datagram[:n], len(datagram), guess))
	if received == computed || f.ipv6 {
		return guess, received == computed
	}
	// CRC is linear: the difference is that of the identifications. The ICRC is as far from them as in a
	// datagram of n bytes.
	id, ok = e.Explain(received, computed, n+icrcLen)
	return id ^ guess, ok
}

// CheckHeaders is Check for a packet with HeaderICRC: its ICRC covers the IP and UDP headers, with the
// length of the whole datagram, and the headers up to the payload, but neither payload nor pad. Only
// receivers that have offered to accept such packets may call it. Other senders may set the bit at
// will, so if CheckHeaders fails, Check decides. Decode must accept the
// datagram.
func (f Flow) CheckHeaders(datagram []byte, e *Explainer) (id uint16, ok bool) {
	if !validLength(len(datagram)) {
		return 0, false
	}
	n := HeaderLen(datagram[0])
	if n == 0 || n > len(datagram)-icrcLen {
		return 0, false
	}
	return f.CheckFirst(datagram, n, 0, e)
}

// Restore turns a datagram with HeaderICRC into the packet of a sender without it, for tools that
// decode captures: it clears the bit and writes an ICRC that covers everything.
func (f Flow) Restore(datagram []byte, id uint16) {
	datagram[bthAck] &^= flagHeaders
	f.Seal(datagram, id)
}

// field holds the CRC contribution of a 16-bit field, by its two bytes.
type field [2][256]uint32

// newField returns the field that starts distance bytes before the end.
func newField(distance int) *field {
	f := &field{}
	shift := power(one>>8, distance)
	for i := range f {
		for bit := range 8 {
			f[i][1<<bit] = times(1<<(8*i+bit), shift)
		}
		for v := range f[i] {
			low := v & -v
			f[i][v] = f[i][v&^low] ^ f[i][low]
		}
	}
	return f
}

func (f *field) of(v uint16) uint32 { return f[0][v>>8] ^ f[1][v&0xff] }

// identification is the contribution of the IPv4 identification to the CRC after the UDP header.
var identification = newField(prefix4 - 12)

// lengths holds the contributions of both length fields together at that position, by datagram
// length in words.
type lengths [MaxDatagram/4 + 1]uint32

var (
	ipv4Lengths = newLengths(newField(prefix4-10), ip4Len+udpLen)
	ipv6Lengths = newLengths(newField(prefix6-12), udpLen)
)

// newLengths takes the length field of the IP header and the number of bytes it counts beyond the
// datagram.
func newLengths(ip *field, more int) *lengths {
	l, udp := &lengths{}, newField(4)
	for i := range l {
		n := 4 * i
		l[i] = ip.of(uint16(n+more)) ^ udp.of(uint16(n+udpLen))
	}
	return l
}

// reserved makes the fifth of the following bytes count as ones. It is the contribution to the CRC
// four bytes before that byte, by the byte's value.
var reserved = newReserved()

func newReserved() *[256]uint32 {
	r, back := &[256]uint32{}, overWord()
	for v := range r {
		r[v] = times(uint32(0xff^v), back)
	}
	return r
}

// Explainer recovers the identification in the IPv4 header of a received packet. A UDP socket does
// not report it, but the ICRC covers it. Senders differ: some send 0, some a counter, some the
// segment number within a larger send.
//
// The CRCs for two identifications differ by a value that depends only on the identifications and
// the length. So take the difference between the received ICRC and the one for identification 0,
// and divide it by the power of x for the length. The quotient is the identification if its other
// sixteen bits are 0. Those sixteen bits remain as the check: one in 65,536 randomly corrupted
// packets passes, instead of one in 2^32. The UDP checksum, if the sender sets it, and the link's
// own checks add to that.
//
// The division uses a table per length, created on first use: 512 bytes each, half a megabyte in
// total. The zero Explainer is ready. It is safe for concurrent use.
type Explainer struct {
	tables [MaxDatagram/4 + 1]atomic.Pointer[quotients]
}

// quotients is a division table, indexed by four bits of the dividend.
type quotients [8][16]uint32

// Explain returns the identification that explains the received ICRC. computed is the ICRC for
// identification 0. length is the datagram length, including the ICRC.
func (e *Explainer) Explain(received, computed uint32, length int) (id uint16, ok bool) {
	difference := received ^ computed
	if difference == 0 {
		return 0, true
	}
	if !validLength(length) {
		return 0, false
	}
	q := e.tables[length>>2].Load()
	if q == nil {
		// A concurrent caller creates the same table.
		q = newQuotients(length)
		e.tables[length>>2].Store(q)
	}
	v := q[0][difference&15] ^ q[1][difference>>4&15] ^ q[2][difference>>8&15] ^ q[3][difference>>12&15] ^
		q[4][difference>>16&15] ^ q[5][difference>>20&15] ^ q[6][difference>>24&15] ^ q[7][difference>>28]
	if v>>16 != 0 {
		return 0, false
	}
	return bits.ReverseBytes16(uint16(v)), true
}

// newQuotients returns the table for a length. The identification starts at the fifth byte of the
// IP header. The ICRC covers everything from there on except itself.
func newQuotients(length int) *quotients {
	covered := ip4Len - 4 + udpLen + length - icrcLen
	inverse := power(overWord(), covered/4)
	q := &quotients{}
	for i := range q {
		for v := range q[i] {
			q[i][v] = times(uint32(v)<<(4*i), inverse)
		}
	}
	return q
}
