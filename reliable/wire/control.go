package wire

import "encoding/binary"

// Sizes of control packets in bytes. A UD receive needs 40 more bytes for the GRH.
const (
	ControlLen    = 8    // fixed part
	MaxControlLen = 1024 // maximum
)

// Control packet:
//
//	 0         8         16                 31
//	+---------+---------+-------------------+
//	| version | records |         0         |  0
//	+---------+---------+-------------------+
//	|       connection of the receiver      |  4
//	+---------------------------------------+
//	|              records ...              |  8
//
// Records are idempotent: a duplicate, late or lost record does no harm.

// StartControl appends the start of a control packet to b, which must be empty.
func StartControl(b []byte, conn uint32) []byte {
	b = append(b, Version, 0, 0, 0)
	return binary.BigEndian.AppendUint32(b, conn)
}

// AddRecord appends r to the control packet b and reports whether it fits MaxControlLen and 255
// records. If not, b is unchanged.
func AddRecord(b []byte, r *Record) ([]byte, bool) {
	if len(b)+r.Len() > MaxControlLen || b[1] == 255 {
		return b, false
	}
	b[1]++
	return r.append(b), true
}

// Reader decodes a control packet. The zero value is empty.
type Reader struct {
	Conn uint32 // the connection of the receiver
	rest []byte // the records that were not read
	left int    // their number
}

// Open starts reading a packet. It validates the whole packet: if one record is malformed, Open returns
// ErrMalformed and Next returns false.
func (r *Reader) Open(b []byte) error {
	*r = Reader{}
	switch {
	case len(b) < ControlLen || len(b) > MaxControlLen:
		return malformedf("control packet of %d bytes, want %d to %d", len(b), ControlLen, MaxControlLen)
	case b[0] != Version:
		return malformedf("control packet of version %d, this is %d", b[0], Version)
	case b[2] != 0 || b[3] != 0:
		return malformedf("control packet with reserved bits set")
	case b[1] == 0:
		return malformedf("control packet without records")
	}
	rest := b[ControlLen:]
	for range int(b[1]) {
		var rec Record
		n, err := rec.decode(rest)
		if err != nil {
			return err
		}
		rest = rest[n:]
	}
	if len(rest) != 0 {
		return malformedf("control packet with %d bytes after its %d records", len(rest), b[1])
	}
	r.Conn = binary.BigEndian.Uint32(b[4:])
	r.rest, r.left = b[ControlLen:], int(b[1])
	return nil
}

// Next decodes the next record into rec. It returns false at the end.
func (r *Reader) Next(rec *Record) bool {
	if r.left == 0 {
		return false
	}
	r.left--
	n, err := rec.decode(r.rest)
	r.rest = r.rest[n:]
	return err == nil
}
