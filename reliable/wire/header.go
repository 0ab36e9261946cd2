package wire

import "encoding/binary"

// Op is the operation of a chunk with a Header.
type Op uint8

const (
	// OpWrite is a fragment of an RDMA WRITE that software places: a retransmitted one, or any with FlagLap. The receiver checks key, address and length
	// against its own regions and copies the bytes.
	OpWrite Op = 1
	// OpEager is a fragment of a SEND. The receive with its number gets the bytes.
	OpEager Op = 2
	// OpNotify completes a WRITE_WITH_IMM. It has no payload and completes the receive with its number.
	OpNotify Op = 3
	// OpFetch is a READ or an atomic. Its payload is a Fetch. The receiver responds.
	OpFetch Op = 4
	// OpAnswer is a fragment of the response to the fetch with its number. A retransmission without
	// payload of a non-empty response means that the response's memory is closed.
	OpAnswer Op = 5
)

// HeaderFlags is a set of chunk flags.
type HeaderFlags uint8

const (
	// FlagLast marks the last fragment of a SEND or a response, every notification and every fetch.
	FlagLast HeaderFlags = 1 << 0
	// FlagImm is set when Imm is the user's immediate.
	FlagImm HeaderFlags = 1 << 1
	// FlagSolicited requests a solicited completion.
	FlagSolicited HeaderFlags = 1 << 2
	// FlagLap is set when Conn and Lap are valid instead of OrigPath and OrigEpoch: software places all
	// chunks of the connection, also first transmissions of a WRITE.
	FlagLap HeaderFlags = 1 << 3

	headerFlagsAll = FlagLast | FlagImm | FlagSolicited | FlagLap

	// LapBits is the size of Lap. Conn has the other 20 bits of their word.
	LapBits = 12
)

// HeaderLen is the encoded length of a Header in bytes.
const HeaderLen = 24

// Header precedes the payload of a chunk that travels as a SEND. Flow and CSN are in the immediate.
//
//	 0         8         16        24       31
//	+---------+---------+---------+---------+
//	| version |   op    |  flags  |  xmit   |  0
//	+---------+---------+---------+---------+
//	|      origPath     |     origEpoch     |  4   with FlagLap: conn, 20 bits, and lap, 12 bits
//	+-------------------+-------------------+
//	|  WRITE: address  | others: message no. |  8
//	+                  +- - - - - - - - - - -+
//	|                  | offset, or total    | 12
//	+-------------------+-------------------+
//	|  WRITE: rkey     | others: immediate   | 16
//	+-------------------+-------------------+
//	|        length of the payload          | 20
//	+---------------------------------------+
//
// The field at 12 is the payload's offset in its SEND or response. In a notification it is the length of
// the completed WRITE, in a fetch the length of the response. Fetches have separate message numbers, and
// responses use their fetches' numbers.
type Header struct {
	Op        Op
	Flags     HeaderFlags
	Xmit      uint8  // the number of earlier transmissions of the chunk
	OrigPath  uint16 // the path of the chunk's first transmission; the fence (see package core) needs it
	OrigEpoch uint16 // the epoch of OrigPath
	Conn      uint32 // the receiver's connection, with FlagLap
	Lap       uint16 // the bits of the chunk's number above its CSN, with FlagLap
	Addr      uint64 // the target, in OpWrite
	RKey      uint32 // the key of the target, in OpWrite
	Message   uint32 // the number of the SEND, notification or fetch; unused in OpWrite
	Offset    uint32 // the payload's offset in its message, or the length of the WRITE or response
	Imm       uint32 // the user's immediate, with FlagImm
	Len       uint32 // the length of the payload in bytes
}

// Put encodes h into b, which must have at least HeaderLen bytes.
func (h *Header) Put(b []byte) {
	_ = b[HeaderLen-1]
	b[0], b[1], b[2], b[3] = Version, byte(h.Op), byte(h.Flags), h.Xmit
	word := uint32(h.OrigPath)<<16 | uint32(h.OrigEpoch)
	if h.Flags&FlagLap != 0 {
		word = h.Conn<<LapBits | uint32(h.Lap)
	}
	binary.BigEndian.PutUint32(b[4:], word)
	if h.Op == OpWrite {
		binary.BigEndian.PutUint64(b[8:], h.Addr)
		binary.BigEndian.PutUint32(b[16:], h.RKey)
	} else {
		binary.BigEndian.PutUint32(b[8:], h.Message)
		binary.BigEndian.PutUint32(b[12:], h.Offset)
		binary.BigEndian.PutUint32(b[16:], h.Imm)
	}
	binary.BigEndian.PutUint32(b[20:], h.Len)
}

// DecodeHeader decodes the header at the start of a message. The rest of b must be exactly the announced
// payload. Errors wrap ErrMalformed.
func DecodeHeader(b []byte) (Header, error) {
	if len(b) < HeaderLen {
		return Header{}, malformedf("chunk of %d bytes, its header has %d", len(b), HeaderLen)
	}
	h := Header{
		Op: Op(b[1]), Flags: HeaderFlags(b[2]), Xmit: b[3],
		Len: binary.BigEndian.Uint32(b[20:]),
	}
	if word := binary.BigEndian.Uint32(b[4:]); h.Flags&FlagLap != 0 {
		h.Conn, h.Lap = word>>LapBits, uint16(word&(1<<LapBits-1))
	} else {
		h.OrigPath, h.OrigEpoch = uint16(word>>16), uint16(word)
	}
	if h.Op == OpWrite {
		h.Addr = binary.BigEndian.Uint64(b[8:])
		h.RKey = binary.BigEndian.Uint32(b[16:])
	} else {
		h.Message = binary.BigEndian.Uint32(b[8:])
		h.Offset = binary.BigEndian.Uint32(b[12:])
		h.Imm = binary.BigEndian.Uint32(b[16:])
	}
	if b[0] != Version {
		return Header{}, malformedf("chunk of version %d, this is %d", b[0], Version)
	}
	return h, h.validate(len(b) - HeaderLen)
}

// validate returns what is wrong with h in front of n bytes.
func (h *Header) validate(n int) error {
	lap, flags := h.Flags&FlagLap, h.Flags&^FlagLap
	switch {
	case h.Op < OpWrite || h.Op > OpAnswer:
		return malformedf("chunk with the unknown op %d", h.Op)
	case h.Flags&^headerFlagsAll != 0:
		return malformedf("chunk with unknown flags %#x", h.Flags)
	case uint64(h.Len) != uint64(n):
		return malformedf("chunk announces %d bytes and has %d", h.Len, n)
	case h.Op == OpWrite && (h.Xmit == 0 && lap == 0 || flags != 0):
		return malformedf("WRITE with transmission %d and flags %#x: want above 0 or FlagLap, and no other flag", h.Xmit, h.Flags)
	case h.Op == OpNotify && (h.Len != 0 || h.Flags&FlagLast == 0):
		return malformedf("notification with %d bytes and flags %#x: want no bytes and FlagLast", h.Len, h.Flags)
	case h.Op == OpFetch && (h.Len != FetchLen || flags != FlagLast):
		return malformedf("fetch with %d bytes and flags %#x: want %d bytes and FlagLast alone", h.Len, h.Flags, FetchLen)
	case h.Op == OpAnswer && flags&^FlagLast != 0:
		return malformedf("answer with flags %#x: want FlagLast or none", h.Flags)
	case (h.Op == OpEager || h.Op == OpAnswer) && uint64(h.Offset)+uint64(h.Len) > 1<<32-1:
		return malformedf("chunk at %d with %d bytes ends beyond 32 bits", h.Offset, h.Len)
	case h.Flags&FlagImm == 0 && h.Imm != 0:
		return malformedf("chunk with an immediate that its flags do not announce")
	}
	return nil
}
