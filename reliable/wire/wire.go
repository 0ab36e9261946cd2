// Package wire defines the formats of package reliable: the immediate of every message on a data path
// ([Imm]), the header of chunks placed by software ([Header]), fetches ([Fetch]), and control packets
// ([StartControl], [AddRecord], [Reader]). Package reliable encodes and decodes them for package core.
//
// All formats are big-endian and share one Version. A format change needs a new Version: peers with
// different versions refuse to connect. Decoding is strict: an unknown version, kind, flag or length, a
// set reserved bit and trailing bytes are errors that wrap ErrMalformed. Decoding never panics, and only
// the text of an error allocates. All functions are safe for concurrent use; values are plain data.
package wire

import (
	"errors"
	"fmt"
)

// Version is the version of all formats in this package. Peers with different versions refuse to
// connect.
const Version = 4

// ErrMalformed is wrapped by all errors about bytes that this version of the protocol never sends.
var ErrMalformed = errors.New("malformed packet")

func malformedf(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrMalformed, fmt.Sprintf(format, args...))
}
