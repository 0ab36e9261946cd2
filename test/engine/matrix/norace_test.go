//go:build !race

package matrix_test

// matrixShort is the reduced size of a 1 GiB row when IBVERBX_TEST_LONG is not set.
const matrixShort = 64 << 20
