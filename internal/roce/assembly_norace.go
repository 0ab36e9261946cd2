//go:build !race && !heapmem

package roce

// assemblyMayCopy is set if assembly may copy bytes, which the race detector would not see.
const assemblyMayCopy = true
