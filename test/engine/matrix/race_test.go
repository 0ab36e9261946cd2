//go:build race

package matrix_test

// matrixShort is what a row of 1 GiB moves unless IBVERBX_LONG is set. The race detector
// looks at every byte of memory that is on the Go heap: with 64 MiB it takes minutes.
const matrixShort = 8 << 20
