// Package matrix runs the distributed test cases of the C++ implementation in torchcomms
// (testdata/ibverbx_matrix.csv) and compares every byte.
package matrix
