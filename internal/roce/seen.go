//go:build race || heapmem

package roce

// unseen is false where assembly must not copy bytes: the race detector does not see its accesses. The
// heap memory that tests use with the race detector is treated alike.
const unseen = false
