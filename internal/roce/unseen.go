//go:build !race && !heapmem

package roce

// unseen is set if assembly may copy bytes, which the race detector would not see.
const unseen = true
