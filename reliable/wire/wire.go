// Package wire defines the formats of package reliable: the immediate of every message on a data path,
// the header of chunks that software places, fetches, and control packets.
//
// All formats are big-endian and versioned. Bytes of a peer are decoded strictly: an unknown version,
// kind, flag or length, a reserved bit that is set and trailing bytes are errors that wrap ErrMalformed.
// Decoding never panics, and only the text of an error allocates.
package wire

import (
	"errors"
	"fmt"
)

// Version is the version of all formats of this package. Peers of different versions
// refuse to connect.
const Version = 3

// ErrMalformed is wrapped by all errors about bytes that this version of the protocol does not send.
var ErrMalformed = errors.New("malformed packet")

func malformedf(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrMalformed, fmt.Sprintf(format, args...))
}
