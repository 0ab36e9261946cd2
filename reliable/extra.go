package reliable

import (
	"encoding/binary"

	"ibverbx/verbs"
)

// Endpoint.Extra of a wrapped QP is its card, and behind it what the inner provider has to say
// to the other end's, which gets it back when the side QP is connected:
//
//	+------+----------------------+------------+
//	| card | Extra of the side QP | its length |
//	+------+----------------------+------------+
//	                                  2 bytes

// joinExtra puts the two together.
func joinExtra(card, inner []byte) []byte {
	return binary.BigEndian.AppendUint16(append(card, inner...), uint16(len(inner)))
}

// splitExtra takes them apart. What it returns belongs to b.
func splitExtra(b []byte) (card, inner []byte, err error) {
	if len(b) == 0 {
		return nil, nil, nil
	}
	rest := len(b) - 2
	if rest < 0 || int(binary.BigEndian.Uint16(b[rest:])) > rest {
		return nil, nil, verbs.Invalidf("the peer's Extra of %d bytes says that more of it belongs to the inner provider", len(b))
	}
	at := rest - int(binary.BigEndian.Uint16(b[rest:]))
	return b[:at], b[at:rest], nil
}
