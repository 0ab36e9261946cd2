//go:build race || heapmem

package roce

// assemblyMayCopy is false under the race detector, which does not see the accesses of assembly. The
// heap memory that tests use with the race detector is treated alike.
const assemblyMayCopy = false
