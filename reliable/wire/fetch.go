package wire

import "encoding/binary"

// FetchKind is the operation of a fetch.
type FetchKind uint8

const (
	// FetchRead is an RDMA READ.
	FetchRead FetchKind = 1
	// FetchSwap is a compare and swap of 8 bytes.
	FetchSwap FetchKind = 2
	// FetchAdd is a fetch and add of 8 bytes.
	FetchAdd FetchKind = 3
)

// FetchLen is the encoded length of a Fetch in bytes.
const FetchLen = 32

// Fetch is the payload of an OpFetch. The length of the response is in the header.
//
//	 0         8         16        24       31
//	+---------+---------+---------+---------+
//	|                                       |  0
//	+                address                +
//	|                                       |  4
//	+---------------------------------------+
//	|                 rkey                  |  8
//	+---------+-----------------------------+
//	|  kind   |              0              | 12   kind: 1 READ 2 compare and swap 3 fetch and add
//	+---------+-----------------------------+
//	|        operand: compare or add        | 16, 20
//	+---------------------------------------+
//	|             operand: swap             | 24, 28
//	+---------------------------------------+
//
// A READ has no operands, a fetch and add one. Unused operands are 0. The response to an atomic is the
// former value, as 8 bytes in big-endian order.
type Fetch struct {
	Kind       FetchKind
	Addr       uint64 // the source of a READ, the word of an atomic
	RKey       uint32 // the key of Addr
	CompareAdd uint64 // the value to compare with, or to add
	Swap       uint64 // the value to store if the word is equal
}

// Put encodes f into b, which must have at least FetchLen bytes.
func (f *Fetch) Put(b []byte) {
	be := binary.BigEndian
	_ = b[FetchLen-1]
	be.PutUint64(b, f.Addr)
	be.PutUint32(b[8:], f.RKey)
	be.PutUint32(b[12:], uint32(f.Kind)<<24)
	be.PutUint64(b[16:], f.CompareAdd)
	be.PutUint64(b[24:], f.Swap)
}

// DecodeFetch decodes the payload of an OpFetch, which must have FetchLen bytes. Errors wrap
// ErrMalformed.
func DecodeFetch(b []byte) (Fetch, error) {
	if len(b) != FetchLen {
		return Fetch{}, malformedf("fetch of %d bytes, want %d", len(b), FetchLen)
	}
	be := binary.BigEndian
	f := Fetch{
		Kind: FetchKind(b[12]), Addr: be.Uint64(b), RKey: be.Uint32(b[8:]), CompareAdd: be.Uint64(b[16:]), Swap: be.Uint64(b[24:]),
	}
	switch {
	case f.Kind < FetchRead || f.Kind > FetchAdd:
		return Fetch{}, malformedf("fetch of the unknown kind %d", f.Kind)
	case be.Uint32(b[12:])<<8 != 0:
		return Fetch{}, malformedf("fetch with reserved bits set")
	case f.Kind == FetchRead && f.CompareAdd != 0, f.Kind != FetchSwap && f.Swap != 0:
		return Fetch{}, malformedf("fetch of kind %d with the operands %#x and %#x", f.Kind, f.CompareAdd, f.Swap)
	}
	return f, nil
}
