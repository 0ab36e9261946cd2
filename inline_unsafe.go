package ibverbx

import (
	"unsafe"

	"ibverbx/verbs"
)

// inlineBytes makes b the inline payload of a request. A NIC reads inline bytes by their address within
// the post. b is in the VirtualQP's own memory, which does not move and lives as long as the VirtualQP.
func inlineBytes(wr *verbs.SendWR, b []byte) {
	wr.Flags |= verbs.SendInline
	wr.NumSGE = 0
	if len(b) > 0 {
		wr.SGE[0] = verbs.SGE{Addr: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))), Length: uint32(len(b))}
		wr.NumSGE = 1
	}
}
