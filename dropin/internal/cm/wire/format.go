package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"ibverbx/dropin/internal/cm"
	"ibverbx/verbs"
)

// version is the version of all formats in this file.
const version = 1

// Sizes in bytes.
const (
	recordSize   = 256
	datagramSize = 20
)

// Every format starts with magic, the version and a kind: a record's kind, queryKind or
// responseKind.
const (
	magic        = "IBCM"
	headerSize   = 6
	queryKind    = 0x80
	responseKind = 0x81
)

var errFormat = errors.New("not a message of this version of the connection manager")

func appendHeader(b []byte, kind uint8) []byte { return append(append(b, magic...), version, kind) }

// checkHeader checks the size and the header of a message and returns its kind.
func checkHeader(b []byte, size int) (kind uint8, err error) {
	if len(b) != size || string(b[:len(magic)]) != magic || b[4] != version {
		return 0, errFormat
	}
	return b[5], nil
}

// A record is the header, then: space 6, port 8, reason 10, GID 12, LID 28, MTU 30, timeout 31, PSN 32, QPN 36, responder resources 40,
// initiator depth 41, flow control 42, retry 43, RNR retry 44, SRQ 45, private length 46, 0 at 47, private data 48, Q_Key 244, zeros from 248
// on. Integers are big-endian.
const (
	privateAt  = 48
	privateEnd = privateAt + len(cm.Private{}.Data)
	qkeyEnd    = privateEnd + 4
)

// encode returns the record of a message.
func encode(m *cm.Message) []byte {
	s, p := &m.Side, &m.Side.Param
	b := appendHeader(make([]byte, 0, recordSize), uint8(m.Kind))
	b = binary.BigEndian.AppendUint16(b, m.Space)
	b = binary.BigEndian.AppendUint16(b, m.Port)
	b = binary.BigEndian.AppendUint16(b, m.Reason)
	b = append(b, s.GID[:]...)
	b = binary.BigEndian.AppendUint16(b, s.LID)
	b = append(b, uint8(s.MTU), s.Timeout)
	b = binary.BigEndian.AppendUint32(b, s.PSN)
	b = binary.BigEndian.AppendUint32(b, p.QPN)
	b = append(b, p.ResponderResources, p.InitiatorDepth, p.FlowControl, p.Retry, p.RNRRetry, p.SRQ, p.Private.Len, 0)
	b = append(b, p.Private.Data[:]...)
	b = binary.BigEndian.AppendUint32(b, p.QKey)
	return b[:recordSize]
}

// decode reads a record. It rejects values that a manager never sends.
func decode(b []byte) (m cm.Message, err error) {
	kind, err := checkHeader(b, recordSize)
	if err != nil {
		return m, err
	}
	m = cm.Message{Kind: cm.Kind(kind), Space: binary.BigEndian.Uint16(b[6:]), Port: binary.BigEndian.Uint16(b[8:]), Reason: binary.BigEndian.Uint16(b[10:])}
	s, p := &m.Side, &m.Side.Param
	copy(s.GID[:], b[12:])
	s.LID, s.MTU, s.Timeout = binary.BigEndian.Uint16(b[28:]), verbs.MTU(b[30]), b[31]
	s.PSN, p.QPN = binary.BigEndian.Uint32(b[32:]), binary.BigEndian.Uint32(b[36:])
	p.ResponderResources, p.InitiatorDepth, p.FlowControl, p.Retry, p.RNRRetry, p.SRQ = b[40], b[41], b[42], b[43], b[44], b[45]
	p.Private.Len = b[46]
	copy(p.Private.Data[:], b[privateAt:privateEnd])
	p.QKey = binary.BigEndian.Uint32(b[privateEnd:])
	switch {
	case m.Kind < cm.REQ || m.Kind > cm.DREP:
		return cm.Message{}, fmt.Errorf("%w: kind %d", errFormat, kind)
	case int(p.Private.Len) > len(p.Private.Data) || !zero(p.Private.Data[p.Private.Len:]) || b[47] != 0 || !zero(b[qkeyEnd:]):
		return cm.Message{}, fmt.Errorf("%w: private data or padding", errFormat)
	case m.Kind > cm.REP:
		if s.GID != (verbs.GID{}) || s.LID|m.Space|m.Port != 0 || s.MTU|verbs.MTU(s.Timeout) != 0 || s.PSN|p.QPN|p.QKey != 0 || !zero(b[40:46]) {
			return cm.Message{}, fmt.Errorf("%w: a QP in a message of kind %d", errFormat, kind)
		}
	case s.GID.IsZero() || s.MTU < verbs.MTU256 || s.MTU > verbs.MTU4096 || s.Timeout > 31 || s.PSN >= 1<<24 || p.QPN >= 1<<24 || p.Retry > 7 || p.RNRRetry > 7:
		return cm.Message{}, fmt.Errorf("%w: parameter out of range", errFormat)
	}
	return m, nil
}

func zero(b []byte) bool { return len(bytes.TrimLeft(b, "\x00")) == 0 }

// A datagram is the header, 2 zero bytes, a number that the response repeats, the TCP port (0 in a
// query), and 2 zero bytes. Queries and responses have the same size, so the UDP socket does not
// amplify traffic.
func encodeDatagram(kind uint8, nonce uint64, port uint16) []byte {
	b := append(appendHeader(make([]byte, 0, datagramSize), kind), 0, 0)
	b = binary.BigEndian.AppendUint64(b, nonce)
	return append(binary.BigEndian.AppendUint16(b, port), 0, 0)
}

func decodeDatagram(b []byte, want uint8) (nonce uint64, port uint16, err error) {
	kind, err := checkHeader(b, datagramSize)
	if err != nil || kind != want {
		return 0, 0, errFormat
	}
	nonce, port = binary.BigEndian.Uint64(b[8:]), binary.BigEndian.Uint16(b[16:])
	if (port == 0) != (kind == queryKind) || !zero(b[6:8]) || !zero(b[18:]) {
		return 0, 0, errFormat
	}
	return nonce, port, nil
}
