//go:build race

package matrix_test

// matrixShort is the reduced size of a 1 GiB row when IBVERBX_TEST_LONG is not set. The race detector checks every
// byte on the Go heap, and 64 MiB would take minutes.
const matrixShort = 8 << 20
