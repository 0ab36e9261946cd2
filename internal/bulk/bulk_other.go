//go:build !amd64 || race || heapmem

package bulk

// streams is false where this package has no code for the processor. It is also false for the race
// detector, which does not see the accesses of assembly, and for the heap memory that tests use
// with it.
const streams = false

func stream(dst, src []byte) int { return copy(dst, src) }
