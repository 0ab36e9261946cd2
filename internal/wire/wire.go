// Package wire decodes messages from peers that have fields of varying length, with a [Reader]. Senders
// write them with package encoding/binary, [AppendString] and [AppendFlag]. Formats with fixed layouts
// (RoCE packets, sealed packets, reliable's headers) are read by offset in their own packages.
//
// A changed encoding of a field changes the protocols of node and all services: each needs a new version.
package wire

import (
	"encoding/binary"
	"unicode/utf8"
)

// Reader decodes a message field by field, in little-endian order. Fields need not be checked
// individually: after a missing or invalid field all further fields are zero, and OK reports false.
type Reader struct {
	b   []byte
	bad bool
}

// NewReader returns a Reader at the start of b. Slices returned by Take alias b.
func NewReader(b []byte) Reader { return Reader{b: b} }

// Len is the number of bytes left. It is 0 after an error.
func (r *Reader) Len() int { return len(r.b) }

// OK reports whether all fields read were present and valid.
func (r *Reader) OK() bool { return !r.bad }

// End reports whether the whole message was valid and has been read.
func (r *Reader) End() bool { return !r.bad && len(r.b) == 0 }

// Check marks the message as invalid unless ok is true.
func (r *Reader) Check(ok bool) {
	if !ok {
		r.bad, r.b = true, nil
	}
}

// Skip discards the remaining bytes.
func (r *Reader) Skip() { r.b = nil }

// Take returns the next n bytes. If they are missing it returns n zero bytes, so n must be bounded.
func (r *Reader) Take(n int) []byte {
	if len(r.b) < n {
		r.Check(false)
		return make([]byte, n)
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

// U8 returns the next byte.
func (r *Reader) U8() uint8 { return r.Take(1)[0] }

// U16 returns the next 2 bytes.
func (r *Reader) U16() uint16 { return binary.LittleEndian.Uint16(r.Take(2)) }

// U32 returns the next 4 bytes.
func (r *Reader) U32() uint32 { return binary.LittleEndian.Uint32(r.Take(4)) }

// U64 returns the next 8 bytes.
func (r *Reader) U64() uint64 { return binary.LittleEndian.Uint64(r.Take(8)) }

// Flag returns the next byte, which must be 0 or 1.
func (r *Reader) Flag() bool {
	v := r.U8()
	r.Check(v <= 1)
	return v == 1
}

// String returns a string of at most limit bytes, preceded by its length. It may hold any bytes.
func (r *Reader) String(limit int) string {
	n := int(r.U16())
	r.Check(n <= limit)
	if r.bad {
		return ""
	}
	return string(r.Take(n))
}

// Rest returns the remaining bytes, at most limit.
func (r *Reader) Rest(limit int) string {
	r.Check(len(r.b) <= limit)
	return string(r.Take(len(r.b)))
}

// Text returns the remaining bytes, at most limit, which must be UTF-8.
func (r *Reader) Text(limit int) string {
	s := r.Rest(limit)
	r.Check(utf8.ValidString(s))
	return s
}

// AppendFlag appends what Flag reads.
func AppendFlag(b []byte, on bool) []byte {
	if on {
		return append(b, 1)
	}
	return append(b, 0)
}

// AppendString appends what String reads. s has at most 65,535 bytes.
func AppendString(b []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint16(b, uint16(len(s))), s...)
}
