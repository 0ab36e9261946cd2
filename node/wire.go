package node

import (
	"encoding/binary"
	"fmt"

	"ibverbx/bootstrap"
	"ibverbx/internal/service"
)

// Messages of this package, bootstrap.KindService with service.NodeID. Numbers are little-endian.
//
//	0        1      2
//	| NodeID | type | fields ...
//
//	hello    lowest version u16, highest version u16, features u32, session u64, resume u64
//	welcome  version u16, features u32, session u64
//	refuse   code u8
//	park, parked, busy, wake have no fields
//
// The dialer sends hello, the listener answers with welcome or refuse. Then both make a VirtualQP (package peer). A side that finds
// the session idle sends park and posts nothing more. The other side answers with parked if it has nothing to post either,
// otherwise with busy. Two parks that cross count as parked. Then both close the VirtualQP. The dialer sends wake before it makes
// another one. A listener that wants one sends wake and waits for that of the dialer.
type message struct {
	kind messageKind
	// lowest and highest are the versions that a hello offers. In a welcome highest is the one that was chosen.
	lowest, highest uint16
	// features has bits that this version does not define.
	features uint32
	// session is a random number that the dialer gives the session. It is not 0.
	session uint64
	// resume is the last session that the dialer has had with the peer, 0 if there was none. A listener that takes this session for
	// alive knows then that it is not.
	resume uint64
	code   refusal
}

type messageKind uint8

const (
	kindHello messageKind = iota + 1
	kindWelcome
	kindRefuse
	kindPark
	kindParked
	kindBusy
	kindWake
	kindEnd
)

// lengths are those of the messages, with the two bytes before the fields.
var lengths = [kindEnd]int{kindHello: 26, kindWelcome: 16, kindRefuse: 3, kindPark: 2, kindParked: 2, kindBusy: 2, kindWake: 2}

// refusal is why a listener refuses a session.
type refusal uint8

const (
	refusedDuplicate refusal = iota + 1 // there is a session, or the listener is making one
	refusedVersion
	refusedLimit // there are too many peers or realms
	refusedRealm // the peer belongs to another realm than before
	refusalEnd
)

var refusals = [refusalEnd]string{
	refusedDuplicate: "there is a session already", refusedVersion: "no common version of the protocol",
	refusedLimit: "too many peers", refusedRealm: "the peer is in another realm than before",
}

// version is the version of the messages, and the only one.
const version = 1

func (m *message) encode() []byte {
	b := append(make([]byte, 0, lengths[kindHello]), byte(service.NodeID), byte(m.kind))
	le := binary.LittleEndian
	switch m.kind {
	case kindHello:
		b = le.AppendUint16(b, m.lowest)
		b = le.AppendUint16(b, m.highest)
		b = le.AppendUint32(b, m.features)
		b = le.AppendUint64(b, m.session)
		b = le.AppendUint64(b, m.resume)
	case kindWelcome:
		b = le.AppendUint16(b, m.highest)
		b = le.AppendUint32(b, m.features)
		b = le.AppendUint64(b, m.session)
	case kindRefuse:
		b = append(b, byte(m.code))
	default:
	}
	return b
}

// decode decodes a message of a peer, with its service. Later versions may make hello longer.
func decode(b []byte) (m message, err error) {
	if len(b) < 2 || b[0] != byte(service.NodeID) || b[1] == 0 || b[1] >= byte(kindEnd) {
		return m, violation("a message of %d bytes is not one of this package", len(b))
	}
	m.kind = messageKind(b[1])
	if want := lengths[m.kind]; len(b) != want && (m.kind != kindHello || len(b) < want || len(b) > 4*want) {
		return m, violation("a message of type %d has %d bytes, want %d", m.kind, len(b), want)
	}
	le := binary.LittleEndian
	switch m.kind {
	case kindHello:
		m.lowest, m.highest, m.features = le.Uint16(b[2:]), le.Uint16(b[4:]), le.Uint32(b[6:])
		m.session, m.resume = le.Uint64(b[10:]), le.Uint64(b[18:])
		if m.lowest == 0 || m.lowest > m.highest || m.session == 0 || m.session == m.resume {
			return m, violation("a hello has versions %d to %d and session %d after %d", m.lowest, m.highest, m.session, m.resume)
		}
		if len(b) > lengths[kindHello] && m.highest <= version {
			return m, violation("a hello of version %d has %d bytes, want %d", m.highest, len(b), lengths[kindHello])
		}
	case kindWelcome:
		m.highest, m.features, m.session = le.Uint16(b[2:]), le.Uint32(b[4:]), le.Uint64(b[8:])
	case kindRefuse:
		if m.code = refusal(b[2]); m.code == 0 || m.code >= refusalEnd {
			return m, violation("a refusal with code %d", m.code)
		}
	default:
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
