//go:build windows && !heapmem

package verbs

import (
	"unsafe"

	"golang.org/x/sys/windows"
)

func mapMemory(size int, _ bool) ([]byte, bool, error) {
	p, err := windows.VirtualAlloc(0, uintptr(size), windows.MEM_COMMIT|windows.MEM_RESERVE, windows.PAGE_READWRITE)
	if err != nil {
		return nil, false, err
	}
	// The address is not on the Go heap, so the conversion through a variable is
	// safe: no object could move or be collected.
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&p)), size), false, nil
}

func unmapMemory(b []byte) error {
	return windows.VirtualFree(uintptr(unsafe.Pointer(unsafe.SliceData(b))), 0, windows.MEM_RELEASE)
}
