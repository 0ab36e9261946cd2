package shm

import (
	"sync/atomic"
	"unsafe"
)

// Addr returns the address of b, which must not be empty.
func Addr(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(&b[0]))) }

// Word32 returns the word at off of b, which must be aligned.
func Word32(b []byte, off int) *atomic.Uint32 {
	_ = b[off+3]
	return (*atomic.Uint32)(unsafe.Pointer(&b[off]))
}

// Word64 returns the word at off of b, which must be aligned.
func Word64(b []byte, off int) *atomic.Uint64 {
	_ = b[off+7]
	return (*atomic.Uint64)(unsafe.Pointer(&b[off]))
}
