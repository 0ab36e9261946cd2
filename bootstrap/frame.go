package bootstrap

import (
	"encoding/binary"
	"fmt"
	"io"
)

// frameType is the type of a frame.
type frameType uint8

const (
	framePreface frameType = 1 // version and authentication method
	frameProof   frameType = 2 // knowledge of the token
	frameHello   frameType = 3 // identity and window
	frameRefusal frameType = 4 // aborts the handshake

	frameMessage   frameType = 16 // a message; the only frame with a kind
	frameDatagram  frameType = 17 // a datagram of the control channel
	frameWindow    frameType = 18 // grants more message bytes
	frameKeepalive frameType = 19
	frameBye       frameType = 20 // the last frame of a side, with a reason
)

// Kind is the subject of a message.
type Kind uint8

// Message kinds. Applications use KindApplication; the others belong to packages peer and node.
const (
	KindOffer       Kind = iota + 1 // capabilities of a side
	KindCard                        // the address of a VirtualQP
	KindRegions                     // exported memory
	KindReady                       // the sender is ready for requests
	KindApplication                 // application data
	KindDone                        // the sender is done
	KindService                     // for a service of package node
	kindEnd
)

// Lengths in bytes.
const (
	headerLen = 8
	// MaxMessage is the maximum length of a message body.
	MaxMessage = 1 << 20
	// MaxDatagram is the maximum length of a datagram, at least ibverbx.MaxControl.
	MaxDatagram = 4160
	maxText     = 256
	prefaceLen  = 12
	helloMin    = 16
	helloMax    = helloMin + maxName + 1024 // with optional fields of later versions
	windowLen   = 4
)

// header is the first eight bytes of a frame:
//
//	0                 4      5      6          8
//	| payload length  | type | kind | 0      0 |
//
// kind is 0 unless the frame is a message.
type header struct {
	length uint32
	typ    frameType
	kind   Kind
}

// appendFrame appends a frame to b.
func appendFrame(b []byte, typ frameType, kind Kind, payload []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(payload)))
	b = append(b, byte(typ), byte(kind), 0, 0)
	return append(b, payload...)
}

// decodeHeader decodes and validates a header from a peer.
func decodeHeader(b *[headerLen]byte) (h header, err error) {
	h = header{length: binary.BigEndian.Uint32(b[:]), typ: frameType(b[4]), kind: Kind(b[5])}
	least, most := uint32(0), uint32(0)
	switch h.typ {
	case framePreface:
		least, most = prefaceLen, prefaceLen
	case frameProof:
		least, most = proofLen, proofLen
	case frameHello:
		least, most = helloMin, helloMax
	case frameRefusal:
		least, most = 1, 1+maxText
	case frameMessage:
		most = MaxMessage
	case frameDatagram:
		least, most = 1, MaxDatagram
	case frameWindow:
		least, most = windowLen, windowLen
	case frameBye:
		most = maxText
	case frameKeepalive:
	default:
		if b[0] == 0x16 && b[1] == 3 {
			return h, violation("the peer speaks TLS but this side does not")
		}
		return h, violation("unknown frame type %d", h.typ)
	}
	switch {
	case b[6] != 0 || b[7] != 0:
		return h, violation("a frame of type %d has reserved bytes %#x, want zeros", h.typ, b[6:8])
	case (h.typ == frameMessage) != (h.kind != 0) || h.kind >= kindEnd:
		return h, violation("a frame of type %d has kind %d, which is not allowed", h.typ, h.kind)
	case h.length < least || h.length > most:
		return h, violation("a frame of type %d has %d bytes: want %d to %d", h.typ, h.length, least, most)
	}
	return h, nil
}

// readHeader reads and decodes a header.
func readHeader(r io.Reader) (header, error) {
	var b [headerLen]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return header{}, err
	}
	return decodeHeader(&b)
}

// readPayload reads the payload of a frame. Its length is bounded by the type.
func readPayload(r io.Reader, h header) ([]byte, error) {
	if h.length == 0 {
		return nil, nil
	}
	b := make([]byte, h.length)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, fmt.Errorf("a frame of %d bytes: %w", h.length, err)
	}
	return b, nil
}
