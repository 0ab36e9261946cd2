package ibverbx

import (
	"unsafe"

	"ibverbx/verbs"
)

// inlinePiece makes n inline bytes of a request from off on the payload of a fragment. A
// NIC takes inline bytes by their address, within the post; the bytes lie in the
// VirtualQP's own memory, which lives as long as it does and does not move.
func (q *VirtualQP) inlinePiece(wr *verbs.SendWR, seq, off, n uint32) {
	b := q.inlineOf(seq)[off:][:n]
	wr.SGE[0] = verbs.SGE{Addr: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))), Length: n}
	wr.NumSGE = 1
	wr.Flags |= verbs.SendInline
}
