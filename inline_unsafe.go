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

// inlineRecord is inlineBytes for the record of a request, which all lanes share.
func inlineRecord(wr *verbs.SendWR, s *sendSlot) {
	wr.Flags |= verbs.SendInline
	g := &wr.SGE[0]
	g.Addr, g.Length, g.LKey = uint64(uintptr(unsafe.Pointer(&s.record))), recordSize, 0
}
