package ibverbx

import (
	"unsafe"

	"ibverbx/verbs"
)

// inlinePiece makes n inline bytes of a request from off on the payload of a fragment. A
// NIC takes inline bytes by their address, within the post; the bytes lie in the
// VirtualQP's own memory, which lives as long as it does and does not move.
func (q *VirtualQP) inlinePiece(wr *verbs.SendWR, seq, off, n uint32) {
	inlineBytes(wr, q.inlineOf(seq)[off:][:n])
}

// inlineBytes makes b, which must not move or be collected before the post, the inline
// payload of a request.
func inlineBytes(wr *verbs.SendWR, b []byte) {
	wr.Flags |= verbs.SendInline
	wr.NumSGE = 0
	if len(b) > 0 {
		wr.SGE[0] = verbs.SGE{Addr: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))), Length: uint32(len(b))}
		wr.NumSGE = 1
	}
}
