package files

import (
	"encoding/binary"
	"strings"

	"ibverbx/internal/chunk"
	"ibverbx/internal/wire"
)

// Bits of an entry's attributes, in this order. A request sets attrOwner and attrXattrs to receive
// them.
const (
	attrLinked uint8 = 1 << iota // device and inode, u64 each: the file has several names
	attrSparse                   // the file may have holes
	attrOwner                    // user and group, u32 each
	attrXattrs                   // number u16, names and values

	attrWanted = attrOwner | attrXattrs
	attrAll    = attrLinked | attrSparse | attrWanted
)

// wantBits returns the bits for a request.
func wantBits(w chunk.Want) (bits uint8) {
	if w.Owner {
		bits |= attrOwner
	}
	if w.Xattrs {
		bits |= attrXattrs
	}
	return bits
}

// want decodes the bits of a request.
func (r *reader) want() chunk.Want {
	bits := r.U8()
	r.Check(bits&^attrWanted == 0)
	return chunk.Want{Owner: bits&attrOwner != 0, Xattrs: bits&attrXattrs != 0}
}

// appendAttributes appends the attributes that an entry has.
func appendAttributes(b []byte, e *chunk.Entry) []byte {
	bits := wantBits(chunk.Want{Owner: e.Owner != nil, Xattrs: e.Xattrs != nil})
	if e.Same != (chunk.Identity{}) {
		bits |= attrLinked
	}
	if e.Sparse {
		bits |= attrSparse
	}
	b = append(b, bits)
	if bits&attrLinked != 0 {
		b = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(b, e.Same.Device), e.Same.Inode)
	}
	if e.Owner != nil {
		b = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(b, e.Owner.UID), e.Owner.GID)
	}
	if e.Xattrs != nil {
		b = binary.LittleEndian.AppendUint16(b, uint16(len(e.Xattrs)))
		for _, x := range e.Xattrs {
			b = wire.AppendString(wire.AppendString(b, x.Name), x.Value)
		}
	}
	return b
}

// attributes decodes the attributes of an entry of type t.
func (r *reader) attributes(e *chunk.Entry, t uint8) {
	bits := r.U8()
	r.Check(bits&^attrAll == 0 && (bits&(attrLinked|attrSparse) == 0 || t == entryFile))
	if e.Sparse = bits&attrSparse != 0; bits&attrLinked != 0 {
		e.Same = chunk.Identity{Device: r.U64(), Inode: r.U64()}
		r.Check(e.Same != (chunk.Identity{}))
	}
	if bits&attrOwner != 0 {
		e.Owner = &chunk.Owner{UID: r.U32(), GID: r.U32()}
	}
	if bits&attrXattrs == 0 {
		return
	}
	e.Xattrs = []chunk.Xattr{}
	last, size := "", 0
	for n := r.U16(); n > 0 && r.OK(); n-- {
		x := chunk.Xattr{Name: r.String(maxBase), Value: r.String(chunk.MaxXattrs)}
		size += len(x.Name) + len(x.Value)
		r.Check(strings.HasPrefix(x.Name, chunk.XattrPrefix) && x.Name > last && size <= chunk.MaxXattrs && !strings.ContainsRune(x.Name, 0))
		e.Xattrs, last = append(e.Xattrs, x), x.Name
	}
}
