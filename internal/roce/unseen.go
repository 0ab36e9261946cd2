//go:build !race && !heapmem

package roce

// unseen says that assembly may copy bytes: no race detector watches them.
const unseen = true
