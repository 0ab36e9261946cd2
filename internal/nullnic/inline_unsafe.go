package nullnic

import (
	"unsafe"

	"ibverbx/verbs"
)

// inlineBytes copies the bytes of an inline request, which has an address but no key. They must be
// copied during the post. The address goes through a variable because it may point to mmap memory,
// which Go's pointer rules do not cover.
func inlineBytes(wr *verbs.SendWR) []byte {
	b := make([]byte, 0, wr.Length())
	for _, e := range wr.SGE[:wr.NumSGE] {
		a := uintptr(e.Addr)
		b = append(b, unsafe.Slice(*(**byte)(unsafe.Pointer(&a)), e.Length)...)
	}
	return b
}
