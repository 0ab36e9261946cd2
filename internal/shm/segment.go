package shm

import (
	"encoding/binary"
	"net/netip"
	"sync/atomic"
)

// Segment is memory that one side writes and the other only reads: words, grants to the peer, and a
// ring of packets and lines.
//
//	bell | taken | wants | in | self | grants and credits of QPs | keys of shared regions | ring
type Segment []byte

const (
	takenAt = BellSize
	wantsAt = takenAt + CacheLine
	inAt    = wantsAt + CacheLine
	selfAt  = inAt + CacheLine // address of the segment in the owner's memory, its number, and its UDP address
	qpsAt   = 4096
	mrsAt   = qpsAt + qpSize*Places
	ringAt  = mrsAt + 4*Places

	// SegmentSize is the size of a segment.
	SegmentSize = ringAt + RingSize
	// NoRingSize is the size of a segment without a ring.
	NoRingSize = ringAt

	// qpSize is the size of a QP's grant and credit. The peer reads both in one cache line.
	qpSize = 16

	// Places is the number of grants and of keys in a segment. The low bits of a QP number or a key
	// select the slot.
	Places    = 1 << placeBits
	placeBits = 17
	// numberBits is the width of a QP number, and of a PSN.
	numberBits = 24
)

// Taken counts the ring entries read by the owner.
func (s Segment) Taken() *atomic.Uint32 { return Word32(s, takenAt) }

// Wants is 1 while the owner waits for a free slot in its ring.
func (s Segment) Wants() *atomic.Uint32 { return Word32(s, wantsAt) }

// In is odd while the owner accesses the peer's memory.
func (s Segment) In() *atomic.Uint32 { return Word32(s, inAt) }

// Grant is the word of a QP: see GrantWord.
func (s Segment) Grant(qpn uint32) *atomic.Uint64 { return Word64(s, qpsAt+qpSize*int(qpn%Places)) }

// Credit is the word of a QP's receives: see CreditWord.
func (s Segment) Credit(qpn uint32) *atomic.Uint64 { return Word64(s, qpsAt+qpSize*int(qpn%Places)+8) }

// Key is the word of a region: its key while access is granted, otherwise 0 or another region's
// key.
func (s Segment) Key(key uint32) *atomic.Uint32 { return Word32(s, mrsAt+4*int(key%Places)) }

// Ring is the memory of the ring.
func (s Segment) Ring() []byte { return s[ringAt:] }

// Sign writes the number that identifies the owner to the peer, and the owner's UDP address if
// valid.
func (s Segment) Sign(id uint64, at netip.AddrPort) {
	Word64(s, selfAt).Store(Addr(s))
	Word64(s, selfAt+8).Store(id)
	if at.IsValid() {
		ip := at.Addr().As16()
		binary.NativeEndian.PutUint16(s[selfAt+16+copy(s[selfAt+16:], ip[:]):], at.Port())
	}
}

// At returns the UDP address written by Sign.
func (s Segment) At() netip.AddrPort {
	ip := netip.AddrFrom16([16]byte(s[selfAt+16:]))
	return netip.AddrPortFrom(ip.Unmap(), binary.NativeEndian.Uint16(s[selfAt+32:]))
}

// NumberAddr returns the address of the owner's number in its own memory, as the owner reports it.
func (s Segment) NumberAddr() uint64 { return Word64(s, selfAt).Load() + selfAt + 8 }

// Grant is the remote access that a QP grants to its peer.
type Grant struct {
	Domain      uint32 // number of the protection domain
	Read, Write bool
}

// GrantWord encodes a grant as a word. A grant with any access is never 0:
//
//	33 domain | 32 write | 31 read | 7 from | 0 high bits of the QP number
//
// from is the sum of the first PSN and the number of the QP's peer. RC packets do not identify the
// sending QP. The sum prevents another QP from doing more by grants than by packets.
func GrantWord(g Grant, from, qpn uint32) uint64 {
	word := uint64(g.Domain)<<33 | uint64(from&(1<<numberBits-1))<<(numberBits-placeBits) | uint64(qpn>>placeBits)
	if g.Read {
		word |= 1 << 31
	}
	if g.Write {
		word |= 1 << 32
	}
	return word
}

// GrantOf decodes a grant. It reports false if the word does not grant access to the peer
// identified by from.
func GrantOf(word uint64, from, qpn uint32) (g Grant, ok bool) {
	g.Domain = uint32(word >> 33)
	if word == 0 || (word^GrantWord(g, from, qpn))&^(3<<31) != 0 {
		return Grant{}, false
	}
	g.Read, g.Write = word>>31&1 != 0, word>>32&1 != 0
	return g, true
}

// CreditWord encodes the receives of a QP for requests without acknowledgements:
//
//	32 shortest | 0 posted
//
// posted counts the receives posted since RESET, including consumed ones. Every unused one has space for
// shortest bytes.
func CreditWord(posted, shortest uint32) uint64 { return uint64(shortest)<<32 | uint64(posted) }

// CreditOf decodes a CreditWord.
func CreditOf(word uint64) (posted, shortest uint32) { return uint32(word), uint32(word >> 32) }
