package transfer

import (
	"encoding/binary"
	"fmt"
	"math"
	"unicode/utf8"

	"ibverbx"
	"ibverbx/internal/rpc"
	"ibverbx/internal/service"
	"ibverbx/internal/wire"
)

// version is this package's protocol version.
const version = 2

// Kinds of messages, see package rpc.
const (
	kindOpen   rpc.Kind = 0x01 // id, want u8, name
	kindDigest rpc.Kind = 0x02 // id, ranges of {grant u32, offset u64, length u32}
	kindList   rpc.Kind = 0x03 // id, name: the segments after it

	kindGrant    rpc.Kind = 0x81 // id, grant u32, access u8, region
	kindDigests  rpc.Kind = 0x82 // id, sums of u32
	kindRevoke   rpc.Kind = 0x84 // grant u32, arrived u64, sent u64
	kindRevoked  rpc.Kind = 0x85 // grant u32
	kindListed   rpc.Kind = 0x86 // id, more u8, segments of {access u8, size u64, generation u64, length u8, name}
	maxRanges             = 4096 // ranges of a kindDigest
	maxRange              = 1 << 20
	mailboxGrant          = 0 // stands for the mailbox: the Engine is closing
)

// MaxNameLen is the maximum length of a segment name in bytes.
const MaxNameLen = 255

// hello introduces an Engine to a peer: id u64, seen u64, arrived u64, read u64, mailbox. Trailing bytes belong to later versions.
type hello struct {
	// id identifies the sender's state about the peer and is not 0. It changes if that state is lost. seen is the last known id of the
	// peer, or 0.
	id, seen uint64
	// arrived is the number of the first notification from seen that has not arrived, read the number read by the program.
	arrived, read uint64
	// mailbox receives notifications.
	mailbox ibverbx.RemoteRegion
}

// open requests access to a segment.
type open struct {
	id   uint32
	want Access
	name string
}

// grant grants access to a segment. Its number identifies it until it is revoked.
type grant struct {
	id, number uint32
	access     Access
	region     ibverbx.RemoteRegion
}

// digest requests the CRC32C of ranges in granted segments.
type digest struct {
	id     uint32
	ranges []digestRange
}

type digestRange struct {
	grant  uint32
	offset uint64
	length uint32
}

// digests holds the checksums, in request order.
type digests struct {
	id   uint32
	sums []uint32
}

// list requests the segments whose names follow after, in order.
type list struct {
	id    uint32
	after string
}

// listed holds at least one segment if more follow.
type listed struct {
	id       uint32
	more     bool
	segments []SegmentInfo
}

// revoke revokes a grant. revoked confirms that it is unused.
type (
	revoke struct {
		grant uint32
		// arrived is the number of notifications received from the peer; the session may close before their requests complete. sent
		// is the number sent to the peer. Unless they failed, they are in its completion queues.
		arrived, sent uint64
	}
	revoked struct{ grant uint32 }
)

var little = binary.LittleEndian

func (m *hello) encode() (b []byte) {
	for _, v := range [...]uint64{m.id, m.seen, m.arrived, m.read} {
		b = little.AppendUint64(b, v)
	}
	return appendRegion(b, &m.mailbox)
}

// decodeHello decodes the hello of a peer.
func decodeHello(b []byte) (*hello, error) {
	r := reader{wire.NewReader(b)}
	m := &hello{id: r.U64(), seen: r.U64(), arrived: r.U64(), read: r.U64(), mailbox: r.region()}
	if r.Check(m.id != 0 && m.read <= m.arrived && m.mailbox.Length == mailboxSize); !r.OK() {
		return nil, fmt.Errorf("%w: a hello of %d bytes", errProtocol, len(b))
	}
	return m, nil
}

func (m *open) encode() []byte {
	return append(append(rpc.Begin(kindOpen, m.id), byte(m.want)), m.name...)
}

func (m *grant) encode() []byte {
	b := little.AppendUint32(rpc.Begin(kindGrant, m.id), m.number)
	return appendRegion(append(b, byte(m.access)), &m.region)
}

func (m *digest) encode() []byte {
	b := rpc.Begin(kindDigest, m.id)
	for _, r := range m.ranges {
		b = little.AppendUint32(b, r.grant)
		b = little.AppendUint64(b, r.offset)
		b = little.AppendUint32(b, r.length)
	}
	return b
}

func (m *digests) encode() []byte {
	b := rpc.Begin(kindDigests, m.id)
	for _, sum := range m.sums {
		b = little.AppendUint32(b, sum)
	}
	return b
}

func (m *list) encode() []byte { return append(rpc.Begin(kindList, m.id), m.after...) }

func (m *listed) encode() []byte {
	b := append(rpc.Begin(kindListed, m.id), 0)
	if m.more {
		b[len(b)-1] = 1
	}
	for i := range m.segments {
		s := &m.segments[i]
		b = little.AppendUint64(append(b, byte(s.Access)), uint64(s.Size))
		b = little.AppendUint64(b, s.Generation)
		b = append(append(b, byte(len(s.Name))), s.Name...)
	}
	return b
}

func (m *revoke) encode() []byte {
	return little.AppendUint64(little.AppendUint64(rpc.Begin(kindRevoke, m.grant), m.arrived), m.sent)
}

func (m *revoked) encode() []byte { return rpc.Begin(kindRevoked, m.grant) }

func appendRegion(b []byte, r *ibverbx.RemoteRegion) []byte {
	return service.AppendRegion(b, r, service.Length64)
}

// decode returns the message in b: a pointer to one of the types above or of package rpc, or nil if it should be ignored. Field values are
// in range but otherwise unchecked.
func decode(b []byte) (any, error) {
	r := reader{wire.NewReader(b)}
	k := rpc.Kind(r.U8())
	var m any
	switch k {
	case kindOpen:
		m = r.open()
	case kindGrant:
		m = &grant{id: r.U32(), number: r.U32(), access: r.access(), region: r.region()}
	case kindDigest:
		m = r.digest()
	case kindList:
		m = &list{id: r.U32(), after: r.Text(MaxNameLen)}
	case kindListed:
		m = r.listed()
	case kindDigests:
		m = r.digests()
	case rpc.KindRefusal:
		m = rpc.ReadRefusal(&r.Reader)
	case kindRevoke:
		m = &revoke{grant: r.U32(), arrived: r.U64(), sent: r.U64()}
	case kindRevoked:
		m = &revoked{grant: r.U32()}
	default:
		m = rpc.ReadUnknown(k, &r.Reader)
	}
	if !r.End() {
		return nil, fmt.Errorf("%w: message %#02x of %d bytes", errProtocol, uint8(k), len(b))
	}
	return m, nil
}

// reader decodes a message.
type reader struct{ wire.Reader }

func (r *reader) access() Access {
	a := Access(r.U8())
	r.Check(a != 0 && a&^(Read|Write) == 0)
	return a
}

func (r *reader) region() ibverbx.RemoteRegion {
	return service.ReadRegion(&r.Reader, service.Length64)
}

func (r *reader) open() *open {
	m := &open{id: r.U32(), want: r.access(), name: r.Text(MaxNameLen)}
	r.Check(m.name != "")
	return m
}

func (r *reader) listed() *listed {
	m := &listed{id: r.U32()}
	more := r.U8()
	m.more = more == 1
	for r.OK() && r.Len() > 0 && len(m.segments) < maxListed {
		s := SegmentInfo{Access: r.access()}
		size := r.U64()
		s.Size, s.Generation = int64(size), r.U64()
		s.Name = string(r.Take(int(r.U8())))
		r.Check(size > 0 && size <= math.MaxInt64 && s.Name != "" && utf8.ValidString(s.Name))
		m.segments = append(m.segments, s)
	}
	r.Check(more <= 1 && (!m.more || len(m.segments) > 0))
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
