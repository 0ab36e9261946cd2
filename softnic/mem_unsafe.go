package softnic

import (
	"unsafe"

	"ibverbx/verbs"
)

// bytesAt returns the n bytes at addr for INLINE sends, which name bytes by address without a
// key, as on hardware. An address outside the process's readable memory is a caller bug and
// faults. The address is converted through a variable because it may point to C or mmap memory,
// which Go's pointer rules do not cover.
func bytesAt(addr uint64, n uint32) []byte {
	a := uintptr(addr)
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&a)), n)
}

// sgesAt returns the n elements at addr, under the same contract as bytesAt.
func sgesAt(addr uint64, n uint8) []verbs.SGE {
	a := uintptr(addr)
	return unsafe.Slice(*(**verbs.SGE)(unsafe.Pointer(&a)), n)
}

// isAligned reports whether b starts at a multiple of 8 in memory. A region's registered addresses may differ from its memory's.
func isAligned(b []byte) bool { return uintptr(unsafe.Pointer(unsafe.SliceData(b)))%8 == 0 }

// wordAt returns the first 8 bytes of b as a word for atomic instructions. b must be aligned.
func wordAt(b []byte) *uint64 { return (*uint64)(unsafe.Pointer(unsafe.SliceData(b))) }
