package stream

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"ibverbx"
	"ibverbx/internal/service"
	"ibverbx/internal/wire"
)

// version is this package's protocol version.
const version = 2

// kind is a message's type, its first byte. All numbers are little-endian. Each side has separate stream ids; messages and immediates carry
// the receiver's id.
type kind uint8

const (
	_          kind = 1 + iota // the greeting of version 1
	kindOpen                   // from u16, ring, service
	kindAccept                 // to u16, from u16, ring
	kindRefuse                 // to u16, code u8, text
)

// open requests a stream to a service. The peer writes into ring.
type open struct {
	from    uint16
	ring    ibverbx.RemoteRegion
	service string
}

// accept is the positive response to open.
type accept struct {
	to, from uint16
	ring     ibverbx.RemoteRegion
}

// refuse is the negative response to open.
type refuse struct {
	to   uint16
	code code
	text string
}

// code is the reason for refusing a stream.
type code uint8

const (
	codeUnknown code = 1 + iota // no such service
	codeBusy
	maxText = 256 // bytes of a text
)

// Classes of immediates, and their arguments. The lower 16 bits are the id of the receiver.
const (
	// classData announces stream data.
	classData = 3
	// flagEnd marks the end of the stream, flagCut that bytes are missing there.
	flagEnd = 1 << 16
	flagCut = 1 << 17

	// classCredit reports the bytes read from the ring since the stream was opened, in ring/creditUnits, modulo countMask+1. flagStop
	// reports instead that the receiver has stopped reading.
	classCredit = 4
	creditUnits = 64
	countShift  = 16
	countMask   = 1<<11 - 1
	flagStop    = 1 << 27

	idMask = 1<<16 - 1
)

// Most ids are free, so that ids are not reused soon: an immediate may still arrive for a closed stream.
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

// decode returns the message in b: a pointer to one of the types above. Field values are in range but otherwise unchecked.
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

// reader decodes a message.
type reader struct{ wire.Reader }

func (r *reader) ring() ibverbx.RemoteRegion {
	g := service.ReadRegion(&r.Reader, service.Length32)
	r.Check(g.Length >= MinRing && g.Length <= MaxRing && bits.OnesCount64(g.Length) == 1)
	return g
}

// data is a decoded classData, credit a decoded classCredit.
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
