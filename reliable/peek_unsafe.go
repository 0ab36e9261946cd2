package reliable

import "unsafe"

// peek returns n bytes at an address that the caller of a post has named for inline data,
// which may be anywhere in the process.
func peek(addr uint64, n uint32) []byte {
	if n == 0 {
		return nil
	}
	p := *(*unsafe.Pointer)(unsafe.Pointer(&addr))
	return unsafe.Slice((*byte)(p), n)
}
