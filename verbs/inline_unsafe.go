package verbs

import "unsafe"

// SetInline makes b the payload of an INLINE request. The NIC reads the bytes by address during the
// post. b must therefore be memory that does not move, never a goroutine's stack, and must stay valid
// until the post returns.
func (w *SendWR) SetInline(b []byte) {
	w.Flags |= SendInline
	w.NumSGE = 0
	if len(b) > 0 {
		w.SGE[0] = SGE{Addr: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))), Length: uint32(len(b))}
		w.NumSGE = 1
	}
}
