//go:build heapmem || !(unix || windows)

package verbs

import (
	"os"
	"unsafe"
)

// mapMemory returns page-aligned Go heap memory, so that the race detector sees every
// access. Go's collector does not move heap objects, so the address is stable.
func mapMemory(size int, _ bool) ([]byte, bool, error) {
	page := os.Getpagesize()
	b := make([]byte, size+page)
	skew := int(uintptr(unsafe.Pointer(unsafe.SliceData(b))) & uintptr(page-1))
	if skew != 0 {
		b = b[page-skew:]
	}
	return b[:size:size], false, nil
}

func unmapMemory([]byte) error { return nil }
