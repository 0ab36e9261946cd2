//go:build !race

package matrix_test

// matrixShort is what a row of 1 GiB moves unless IBVERBX_LONG is set.
const matrixShort = 64 << 20
