package reliable

import "unsafe"

// wordOf returns the 8 bytes of b as a word in host order, or nil if b has another length or is not
// aligned.
func wordOf(b []byte) *uint64 {
	if len(b) != 8 || uintptr(unsafe.Pointer(&b[0]))%8 != 0 {
		return nil
	}
	return (*uint64)(unsafe.Pointer(&b[0]))
}

// inlineBytes returns the n bytes at an address that a caller of PostSend has given for inline data. They
// may be anywhere in the process.
func inlineBytes(addr uint64, n uint32) []byte {
	if n == 0 {
		return nil
	}
	p := *(*unsafe.Pointer)(unsafe.Pointer(&addr))
	return unsafe.Slice((*byte)(p), n)
}
