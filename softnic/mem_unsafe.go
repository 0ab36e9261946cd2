package softnic

import (
	"unsafe"

	"ibverbx/verbs"
)

// bytesAt returns the n bytes at addr. INLINE sends use it: they name bytes by address without a
// key, as on hardware. An address that is not readable memory of the process is the caller's bug
// and faults. The address goes through a variable because it may point to C or mmap memory, which
// Go's pointer rules do not cover.
func bytesAt(addr uint64, n uint32) []byte {
	a := uintptr(addr)
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&a)), n)
}

// sgesAt returns the n elements at addr. The contract is that of bytesAt.
func sgesAt(addr uint64, n uint8) []verbs.SGE {
	a := uintptr(addr)
	return unsafe.Slice(*(**verbs.SGE)(unsafe.Pointer(&a)), n)
}

// wordAt returns the word that begins with b, for atomic instructions. It is aligned.
func wordAt(b []byte) *uint64 { return (*uint64)(unsafe.Pointer(unsafe.SliceData(b))) }
