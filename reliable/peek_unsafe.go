package reliable

import "unsafe"

// peek returns the n bytes at an address that a caller of PostSend has given for inline data. They
// may be anywhere in the process.
func peek(addr uint64, n uint32) []byte {
	if n == 0 {
		return nil
	}
	p := *(*unsafe.Pointer)(unsafe.Pointer(&addr))
	return unsafe.Slice((*byte)(p), n)
}
