package cuda

import "unsafe"

// hostAddr is the address of the first byte. The caller has stored b on the heap, so it does not move.
func hostAddr(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// descsAsBytes returns the memory of descriptors, which contain no pointers.
func descsAsBytes(b []copyDesc) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(b))), len(b)*descBytes)
}
