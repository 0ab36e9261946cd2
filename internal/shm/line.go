package shm

import "encoding/binary"

// A line is a ring entry without a packet. Its header carries one request, including the bytes of a
// short SEND. The bytes of a longer SEND are the entry's payload. The bytes of a WRITE are in place.
// Numbers are in host byte order:
//
//	        WRITE                        SEND
//	 0      QP number 24, then flags 8   the same
//	 4      PSN 24, then 0               the same
//	 8      immediate 4                  the same
//	12      length 4                     the same
//	16      address 8                    bytes, up to LineBytes
//	24      key 4
//	28      unused
//	55      reserved for the user of the ring
const (
	linePSNAt    = 4
	lineImmAt    = 8
	lineLengthAt = 12
	lineAddrAt   = 16
	lineKeyAt    = 24
	lineBytesAt  = 16

	// LineBytes is the maximum number of bytes of a SEND inside a line.
	LineBytes = Header - 1 - lineBytesAt
)

// LineFlags are the flags of a line.
type LineFlags uint8

const (
	// LineSend marks a SEND. Without it, the line notifies the peer of a WRITE.
	LineSend LineFlags = 1 << iota
	// LineImm is set if the request has an immediate. A WRITE must have one.
	LineImm
	// LineSolicited makes the peer's completion solicited.
	LineSolicited

	lineFlagsAll = LineSend | LineImm | LineSolicited
)

// Line is the contents of a line, without the bytes of a SEND.
type Line struct {
	Flags LineFlags
	// QPN is the number of the peer's QP. It and PSN have 24 bits.
	QPN, PSN, Imm uint32
	// Length is the request's length in bytes.
	Length uint32
	// Key and Addr are the target of a WRITE.
	Key  uint32
	Addr uint64
}

// Payload returns the number of request bytes in the entry's payload.
func (m *Line) Payload() int {
	if m.Flags&LineSend == 0 || m.Length <= LineBytes {
		return 0
	}
	return int(m.Length)
}

// Encode writes m to an entry's header. For a SEND whose bytes fit the header, it returns their location
// there, otherwise nil.
func (m *Line) Encode(header []byte) (inside []byte) {
	b := header[: Header-1 : Header-1]
	binary.NativeEndian.PutUint32(b, m.QPN|uint32(m.Flags)<<numberBits)
	binary.NativeEndian.PutUint32(b[linePSNAt:], m.PSN)
	binary.NativeEndian.PutUint32(b[lineImmAt:], m.Imm)
	binary.NativeEndian.PutUint32(b[lineLengthAt:], m.Length)
	if m.Flags&LineSend != 0 {
		if m.Length > LineBytes {
			return nil
		}
		return b[lineBytesAt:][:m.Length]
	}
	binary.NativeEndian.PutUint64(b[lineAddrAt:], m.Addr)
	binary.NativeEndian.PutUint32(b[lineKeyAt:], m.Key)
	return nil
}

// Decode reads m from an entry's header. It returns the bytes of a SEND, from header or payload. ok is false
// if the entry is not a valid line.
func (m *Line) Decode(header *[Header]byte, payload []byte) (b []byte, ok bool) {
	first := binary.NativeEndian.Uint32(header[:])
	m.QPN, m.Flags = first&(1<<numberBits-1), LineFlags(first>>numberBits)
	m.PSN = binary.NativeEndian.Uint32(header[linePSNAt:])
	m.Imm = binary.NativeEndian.Uint32(header[lineImmAt:])
	m.Length = binary.NativeEndian.Uint32(header[lineLengthAt:])
	if m.Flags&^lineFlagsAll != 0 || m.PSN>>numberBits != 0 || m.Length > MaxPayload && m.Flags&LineSend != 0 || len(payload) != m.Payload() {
		return nil, false
	}
	if m.Flags&LineSend != 0 {
		if m.Length > LineBytes {
			return payload, true
		}
		return header[lineBytesAt:][:m.Length], true
	}
	m.Addr = binary.NativeEndian.Uint64(header[lineAddrAt:])
	m.Key = binary.NativeEndian.Uint32(header[lineKeyAt:])
	return nil, m.Flags&LineImm != 0
}
