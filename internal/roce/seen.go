//go:build race || heapmem

package roce

// unseen says that bytes must not be copied by assembly: the race detector does not see what that
// touches, so that under it, and with the heap memory that is made for it, the builtin copies.
const unseen = false
