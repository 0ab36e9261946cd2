package node

import (
	"encoding/binary"
	"fmt"

	"ibverbx/bootstrap"
	"ibverbx/internal/service"
	"ibverbx/internal/wire"
)

// Messages of this package, bootstrap.KindService with service.NodeID. Numbers are little-endian.
//
//	0        1      2
//	| NodeID | type | fields ...
//
//	hello    see hello.go
//	refuse   code u8
//	park, parked, busy, wake have no fields
//
// Trailing bytes are ignored, so that later versions can add fields. The dialer sends hello, the listener responds with its
// own or with refuse. Then both create a VirtualQP (package peer). A side that finds the session idle sends park and stops
// posting. The other side responds with parked if it is idle too, otherwise with busy. Two crossing parks count as
// parked. Then both close the VirtualQP. The dialer sends wake before it creates another one. A listener that needs one sends wake
// and waits for the dialer's.
type message struct {
	kind messageKind
	// lowest and highest are the versions supported by a hello's sender.
	lowest, highest uint16
	// session is the session's id, a random number chosen by the dialer. It is not 0.
	session uint64
	// resume is the dialer's previous session with the peer, 0 for the first. A listener that still considers it alive learns of its loss.
	resume uint64
	// services are introduced by a hello.
	services []introduction
	code     refusal
}

type messageKind uint8

const (
	kindHello    messageKind = iota + 1
	kindWelcome1             // the response to a hello in version 1
	kindRefuse
	kindPark
	kindParked
	kindBusy
	kindWake
	kindEnd
)

// refusal is a listener's reason for refusing a session.
type refusal uint8

const (
	refusedDuplicate refusal = iota + 1 // a session exists or is being established
	refusedVersion                      // sent by a version 1 listener
	refusedLimit                        // too many peers or realms
	refusedRealm                        // the peer's realm has changed
	refusalEnd
)

var refusals = [refusalEnd]string{
	refusedDuplicate: "a session exists already", refusedVersion: "no common version of the protocol",
	refusedLimit: "too many peers", refusedRealm: "the peer's realm has changed",
}

func (m *message) encode() []byte {
	b := []byte{byte(service.NodeID), byte(m.kind)}
	le := binary.LittleEndian
	switch m.kind {
	case kindHello:
		b = le.AppendUint16(b, m.lowest)
		b = le.AppendUint16(b, m.highest)
		b = le.AppendUint32(b, 0)
		b = le.AppendUint64(b, m.session)
		b = le.AppendUint64(b, m.resume)
		b = appendIntroductions(b, m.services)
	case kindRefuse:
		b = append(b, byte(m.code))
	default:
	}
	return b
}

// decode decodes a peer's message, including its service. The introductions refer to b.
func decode(b []byte) (m message, err error) {
	if len(b) < 2 || b[0] != byte(service.NodeID) || b[1] == 0 || b[1] == byte(kindWelcome1) || b[1] >= byte(kindEnd) {
		return m, violation("a message of %d bytes is not one of this package", len(b))
	}
	m.kind = messageKind(b[1])
	r := wire.NewReader(b[2:])
	switch m.kind {
	case kindHello:
		m.lowest, m.highest, _, m.session, m.resume = r.U16(), r.U16(), r.U32(), r.U64(), r.U64()
		r.Check(m.lowest > 0 && m.lowest <= m.highest && m.session != 0 && m.session != m.resume)
		if m.lowest <= version && m.highest >= version {
			m.services = readIntroductions(&r)
		}
	case kindRefuse:
		m.code = refusal(r.U8())
		r.Check(m.code > 0 && m.code < refusalEnd)
	default:
	}
	if !r.OK() {
		return message{}, violation("a message of type %d with %d bytes", m.kind, len(b))
	}
	return m, nil
}

// violation returns a bootstrap.ErrProtocol with details.
func violation(format string, args ...any) error {
	return fmt.Errorf("%w: %s", bootstrap.ErrProtocol, fmt.Sprintf(format, args...))
}

// refusedError is an ErrRefused with the reason of this side or of the peer.
type refusedError struct {
	code   refusal
	byPeer bool
}

func (e *refusedError) Error() string {
	by := "by this side"
	if e.byPeer {
		by = "by the peer"
	}
	return fmt.Sprintf("%v %s: %s", ErrRefused, by, refusals[e.code])
}

// Unwrap returns ErrRefused.
func (e *refusedError) Unwrap() error { return ErrRefused }
