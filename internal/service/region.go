package service

import (
	"encoding/binary"
	"math"

	"ibverbx"
	"ibverbx/internal/wire"
)

// LengthBits is the width of a region's length on the wire.
type LengthBits uint8

// Widths of a length.
const (
	Length32 LengthBits = 32
	Length64 LengthBits = 64
)

// AppendRegion appends a region in the format of ReadRegion: address, length, number of keys, keys.
func AppendRegion(b []byte, r *ibverbx.RemoteRegion, bits LengthBits) []byte {
	le := binary.LittleEndian
	b = le.AppendUint64(b, r.Addr)
	if bits == Length32 {
		b = le.AppendUint32(b, uint32(r.Length))
	} else {
		b = le.AppendUint64(b, r.Length)
	}
	b = append(b, byte(len(r.RKeys)))
	for _, key := range r.RKeys {
		b = le.AppendUint32(b, key)
	}
	return b
}

// ReadRegion decodes a peer's region. An empty region, one without keys, and one beyond the address
// space are invalid.
func ReadRegion(r *wire.Reader, bits LengthBits) ibverbx.RemoteRegion {
	g := ibverbx.RemoteRegion{Addr: r.U64()}
	if bits == Length32 {
		g.Length = uint64(r.U32())
	} else {
		g.Length = r.U64()
	}
	keys := int(r.U8())
	r.Check(g.Length > 0 && g.Length <= math.MaxInt64 && g.Addr <= math.MaxUint64-g.Length)
	r.Check(keys > 0 && keys <= ibverbx.MaxRails)
	for range keys {
		if !r.OK() {
			break
		}
		g.RKeys = append(g.RKeys, r.U32())
	}
	return g
}
