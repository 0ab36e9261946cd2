package stream

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"ibverbx"
	"ibverbx/internal/service"
	"ibverbx/internal/wire"
)

// version is the version of the protocol that this package speaks.
const version = 2

// kind is the type of a message, its first byte. All numbers are little-endian. Each side names a stream by an id of its own, and
// messages and immediates carry the id of their receiver.
type kind uint8

const (
	_          kind = 1 + iota // the greeting of version 1
	kindOpen                   // from u16, ring, service
	kindAccept                 // to u16, from u16, ring
	kindRefuse                 // to u16, code u8, text
)

// open asks for a stream to a service. The peer writes into ring.
type open struct {
	from    uint16
	ring    ibverbx.RemoteRegion
	service string
}

// accept answers open.
type accept struct {
	to, from uint16
	ring     ibverbx.RemoteRegion
}

// refuse answers open too.
type refuse struct {
	to   uint16
	code code
	text string
}

// code says why a stream was refused.
type code uint8

const (
	codeUnknown code = 1 + iota // there is no such service
	codeBusy
	maxText = 256 // bytes of a text
)

// Classes of immediates, and their arguments. The lower 16 bits are the id of the receiver.
const (
	// classData comes with bytes of a stream.
	classData = 3
	// flagEnd says that nothing follows, and flagCut that bytes are missing at the end.
	flagEnd = 1 << 16
	flagCut = 1 << 17

	// classCredit says how many bytes were taken from the ring since the stream was opened, in ring/creditUnits, modulo countMask+1.
	// flagStop says instead that no more bytes are wanted.
	classCredit = 4
	creditUnits = 64
	countShift  = 16
	countMask   = 1<<11 - 1
	flagStop    = 1 << 27

	idMask = 1<<16 - 1
)

// Most of the ids of a side are free, so that one is not used again soon: an immediate may still come for a stream that is closed.
var _ = [1]struct{}{}[MaxStreams*16-(idMask+1)]

var little = binary.LittleEndian

func (m *open) encode() []byte {
	return append(appendRing(little.AppendUint16([]byte{byte(kindOpen)}, m.from), &m.ring), m.service...)
}

func (m *accept) encode() []byte {
	b := little.AppendUint16([]byte{byte(kindAccept)}, m.to)
	return appendRing(little.AppendUint16(b, m.from), &m.ring)
}

func (m *refuse) encode() []byte {
	return append(append(little.AppendUint16([]byte{byte(kindRefuse)}, m.to), byte(m.code)), m.text...)
}

func appendRing(b []byte, r *ibverbx.RemoteRegion) []byte {
	return service.AppendRegion(b, r, service.Length32)
}

// decode returns the message in b: a pointer to one of the types above. Its values are in the range of their type, but may be false.
func decode(b []byte) (any, error) {
	r := reader{wire.NewReader(b)}
	var m any
	switch kind(r.U8()) {
	case kindOpen:
		o := &open{from: r.U16(), ring: r.ring()}
		o.service = r.Text(MaxService)
		m = o
	case kindAccept:
		m = &accept{to: r.U16(), from: r.U16(), ring: r.ring()}
	case kindRefuse:
		f := &refuse{to: r.U16(), code: code(r.U8()), text: r.Text(maxText)}
		r.Check(f.code != 0)
		m = f
	default:
		r.Check(false)
	}
	if !r.End() {
		return nil, fmt.Errorf("%w: a message of %d bytes that begins with %x", errProtocol, len(b), b[:min(len(b), 1)])
	}
	return m, nil
}

// reader takes a message apart.
type reader struct{ wire.Reader }

func (r *reader) ring() ibverbx.RemoteRegion {
	g := service.ReadRegion(&r.Reader, service.Length32)
	r.Check(g.Length >= MinRing && g.Length <= MaxRing && bits.OnesCount64(g.Length) == 1)
	return g
}

// data is a classData, and credit a classCredit, taken apart.
type data struct {
	id       uint16
	end, cut bool
}

type credit struct {
	id    uint16
	stop  bool
	count uint32
}

func (d data) encode() uint32 {
	arg := uint32(d.id)
	if d.end {
		arg |= flagEnd
	}
	if d.cut {
		arg |= flagCut
	}
	return service.Immediate(classData, arg)
}

func decodeData(imm uint32) (data, error) {
	d := data{id: uint16(imm & idMask), end: imm&flagEnd != 0, cut: imm&flagCut != 0}
	if d.encode() != imm || d.cut && !d.end {
		return d, fmt.Errorf("%w: immediate %#x", errProtocol, imm)
	}
	return d, nil
}

func (c credit) encode() uint32 {
	arg := uint32(c.id) | c.count&countMask<<countShift
	if c.stop {
		arg |= flagStop
	}
	return service.Immediate(classCredit, arg)
}

func decodeCredit(imm uint32) credit {
	return credit{id: uint16(imm & idMask), stop: imm&flagStop != 0, count: imm >> countShift & countMask}
}
