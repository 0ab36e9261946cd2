// Package wire is what package reliable puts on the wire: the immediate of every data
// path message, the header in front of chunks that software places, and control packets.
//
// Everything is big-endian and versioned. What comes from a peer is decoded strictly: a
// version, a kind, a flag or a length that is not known, a reserved bit that is set and a
// byte too many are errors that wrap ErrMalformed; nothing panics and nothing allocates,
// except the text of an error.
package wire

import (
	"errors"
	"fmt"
)

// Version is the version of all formats of this package. Peers of different versions
// refuse to connect.
const Version = 1

// ErrMalformed says that bytes of a peer are not what this version of the protocol sends.
var ErrMalformed = errors.New("malformed packet")

func malformedf(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrMalformed, fmt.Sprintf(format, args...))
}
