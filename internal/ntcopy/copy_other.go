//go:build !amd64 || race || heapmem

package ntcopy

// divides is false where the builtin performs well at every size. It is also false for the race
// detector, which does not see the accesses of assembly, and for the heap memory that tests use
// with it.
const divides = false

func large(dst, src []byte, _ int) int { return copy(dst, src) }
