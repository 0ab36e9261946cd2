//go:build !amd64 || race || heapmem

package bulk

// streams says that there is no code for this processor, or that there must not be:
// the race detector does not see what assembly touches, so that under it, and with
// the heap memory that is made for it, the builtin copies everything.
const streams = false

func stream(dst, src []byte) int { return copy(dst, src) }
