package transfer

import (
	"encoding/binary"
	"fmt"
	"unicode/utf8"

	"ibverbx"
	"ibverbx/internal/service"
	"ibverbx/internal/wire"
)

// version is the version of the protocol that this package speaks. Both sides say the lowest and the highest that they know, and
// speak the highest that they have in common.
const version = 1

// kind is the type of a message, its first byte. All numbers are little-endian. Requests are below answer: the four bytes behind the
// kind are an id that the asking side chose and that the answer repeats. A request of an unknown kind is refused, and
// an unknown message from answer on is ignored, so that later versions can add kinds. 0x10 to 0x3f are for files.
type kind uint8

const (
	kindOpen   kind = 0x01 // id, want u8, name
	kindDigest kind = 0x02 // id, ranges of {grant u32, offset u64, length u32}

	answer       kind = 0x80
	kindHello    kind = 0x80 // lowest u16, highest u16, features u32, id u64, seen u64, arrived u64, taken u64, mailbox
	kindGrant    kind = 0x81 // id, grant u32, access u8, region
	kindDigests  kind = 0x82 // id, sums of u32
	kindRefusal  kind = 0x83 // id, code u8, text
	kindRevoke   kind = 0x84 // grant u32
	kindRevoked  kind = 0x85 // grant u32
	maxText           = 256  // bytes of a refusal's text
	maxRanges         = 4096 // ranges of a kindDigest
	maxRange          = 1 << 20
	mailboxGrant      = 0 // the grant that stands for the mailbox: the Engine is being closed
)

// MaxName is how many bytes the name of a segment has at most.
const MaxName = 255

// hello is the first message of both sides in a session. It is repeated once if it did not name the peer.
type hello struct {
	lowest, highest uint16
	// features are for later versions, which may set bits that others ignore.
	features uint32
	// id stands for all that the sender knows of the peer, and is not 0. A sender that has forgotten has another one. seen is the id of
	// the peer as far as the sender knows it, or 0.
	id, seen uint64
	// arrived is the number of the first notification of peer seen that has not arrived. taken is how many the program
	// has taken.
	arrived, taken uint64
	// mailbox is where notifications go.
	mailbox ibverbx.RemoteRegion
}

// open asks for the keys of a segment.
type open struct {
	id   uint32
	want Access
	name string
}

// grant lends a segment. It is known by its number until it is revoked.
type grant struct {
	id, number uint32
	access     Access
	region     ibverbx.RemoteRegion
}

// digest asks for the CRC32C of ranges of segments that were lent.
type digest struct {
	id     uint32
	ranges []digestRange
}

type digestRange struct {
	grant  uint32
	offset uint64
	length uint32
}

// digests are the sums, in the order of the ranges.
type digests struct {
	id   uint32
	sums []uint32
}

// refusal answers a request that failed.
type refusal struct {
	id   uint32
	code code
	text string
}

// revoke takes a grant back. revoked says that no request uses it any more.
type (
	revoke struct {
		grant uint32
		// arrived is how many notifications of the peer have arrived. They have, although the session may end before their
		// requests do. sent is how many were sent to the peer. They are in its completion queues, unless they have failed.
		arrived, sent uint64
	}
	revoked struct{ grant uint32 }
)

// code says why a request was refused.
type code uint8

const (
	codeNotFound code = 1 + iota
	codeDenied
	codeRange
	codeUnknown
	codeBusy
	codeChanged
	codeDigest
	codeRevoked
	codeFailed
)

// err returns the error for a code, of which later versions may have more.
func (c code) err() error {
	switch c {
	case codeNotFound:
		return ErrNotFound
	case codeDenied:
		return ErrDenied
	case codeRange:
		return ErrRange
	case codeBusy:
		return ErrBusy
	case codeChanged:
		return ErrChanged
	case codeDigest:
		return ErrDigest
	case codeRevoked:
		return ErrRevoked
	case codeFailed:
		return ErrFailed
	case codeUnknown:
	}
	return ErrMismatch
}

var little = binary.LittleEndian

func (m *hello) encode() []byte {
	b := []byte{byte(kindHello)}
	b = little.AppendUint16(b, m.lowest)
	b = little.AppendUint16(b, m.highest)
	b = little.AppendUint32(b, m.features)
	for _, v := range [...]uint64{m.id, m.seen, m.arrived, m.taken} {
		b = little.AppendUint64(b, v)
	}
	return appendRegion(b, &m.mailbox)
}

func (m *open) encode() []byte {
	return append(append(begin(kindOpen, m.id), byte(m.want)), m.name...)
}

func (m *grant) encode() []byte {
	b := little.AppendUint32(begin(kindGrant, m.id), m.number)
	return appendRegion(append(b, byte(m.access)), &m.region)
}

func (m *digest) encode() []byte {
	b := begin(kindDigest, m.id)
	for _, r := range m.ranges {
		b = little.AppendUint32(b, r.grant)
		b = little.AppendUint64(b, r.offset)
		b = little.AppendUint32(b, r.length)
	}
	return b
}

func (m *digests) encode() []byte {
	b := begin(kindDigests, m.id)
	for _, sum := range m.sums {
		b = little.AppendUint32(b, sum)
	}
	return b
}

func (m *refusal) encode() []byte {
	text := m.text[:min(len(m.text), maxText)]
	for !utf8.ValidString(text) {
		text = text[:len(text)-1]
	}
	return append(append(begin(kindRefusal, m.id), byte(m.code)), text...)
}

func (m *revoke) encode() []byte {
	return little.AppendUint64(little.AppendUint64(begin(kindRevoke, m.grant), m.arrived), m.sent)
}

func (m *revoked) encode() []byte { return begin(kindRevoked, m.grant) }

func begin(k kind, id uint32) []byte { return little.AppendUint32([]byte{byte(k)}, id) }

func appendRegion(b []byte, r *ibverbx.RemoteRegion) []byte {
	return service.AppendRegion(b, r, service.Length64)
}

// unknown is a request of a kind that this version does not have.
type unknown struct{ id uint32 }

// decode returns the message in b: a pointer to one of the types above, or nil for one to be ignored. What it returns is in the range of its
// type, but may still be false.
func decode(b []byte) (any, error) {
	r := reader{wire.NewReader(b)}
	k := kind(r.U8())
	var m any
	switch k {
	case kindHello:
		m = r.hello()
	case kindOpen:
		m = r.open()
	case kindGrant:
		m = &grant{id: r.U32(), number: r.U32(), access: r.access(), region: r.region()}
	case kindDigest:
		m = r.digest()
	case kindDigests:
		m = r.digests()
	case kindRefusal:
		m = r.refusal()
	case kindRevoke:
		m = &revoke{grant: r.U32(), arrived: r.U64(), sent: r.U64()}
	case kindRevoked:
		m = &revoked{grant: r.U32()}
	default:
		if m = r.file(k); m != nil {
			break
		}
		if k == 0 || k >= answer {
			m = nil
		} else {
			m = &unknown{id: r.U32()}
		}
		r.Skip()
	}
	if !r.End() || k == 0 {
		return nil, fmt.Errorf("%w: message %#02x of %d bytes", errProtocol, uint8(k), len(b))
	}
	return m, nil
}

// reader takes a message apart.
type reader struct{ wire.Reader }

func (r *reader) access() Access {
	a := Access(r.U8())
	r.Check(a != 0 && a&^(Read|Write) == 0)
	return a
}

func (r *reader) region() ibverbx.RemoteRegion {
	return service.ReadRegion(&r.Reader, service.Length64)
}

// hello takes a greeting. If the peer speaks no version of ours, only the versions are valid. If it speaks a higher one too, there may
// be more behind what version 1 has.
func (r *reader) hello() *hello {
	m := &hello{lowest: r.U16(), highest: r.U16()}
	r.Check(m.lowest > 0 && m.lowest <= m.highest)
	if !r.OK() || m.lowest > version {
		r.Skip()
		return m
	}
	m.features = r.U32()
	m.id, m.seen, m.arrived, m.taken = r.U64(), r.U64(), r.U64(), r.U64()
	m.mailbox = r.region()
	r.Check(m.id != 0 && m.taken <= m.arrived && m.mailbox.Length == mailboxSize)
	if m.highest > version {
		r.Skip()
	}
	return m
}

func (r *reader) open() *open {
	m := &open{id: r.U32(), want: r.access(), name: r.Text(MaxName)}
	r.Check(m.name != "")
	return m
}

func (r *reader) digest() *digest {
	m := &digest{id: r.U32()}
	n := r.Len() / 16
	r.Check(n > 0 && n <= maxRanges)
	for ; n > 0 && r.OK(); n-- {
		g := digestRange{grant: r.U32(), offset: r.U64(), length: r.U32()}
		r.Check(g.length > 0 && g.length <= maxRange)
		m.ranges = append(m.ranges, g)
	}
	return m
}

func (r *reader) digests() *digests {
	m := &digests{id: r.U32()}
	n := r.Len() / 4
	r.Check(n > 0 && n <= maxRanges)
	for ; n > 0 && r.OK(); n-- {
		m.sums = append(m.sums, r.U32())
	}
	return m
}

func (r *reader) refusal() *refusal {
	m := &refusal{id: r.U32(), code: code(r.U8()), text: r.Text(maxText)}
	r.Check(m.code != 0)
	return m
}
