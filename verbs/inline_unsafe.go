package verbs

import "unsafe"

// SetInline makes b the payload of an INLINE request. A NIC reads the bytes by their address within the post, so they must
// not be on the stack of a goroutine: b is a part of memory that does not move and lives until the post has returned.
func (w *SendWR) SetInline(b []byte) {
	w.Flags |= SendInline
	w.NumSGE = 0
	if len(b) > 0 {
		w.SGE[0] = SGE{Addr: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))), Length: uint32(len(b))}
		w.NumSGE = 1
	}
}
