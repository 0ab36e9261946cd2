//go:build linux && cgo && (amd64 || arm64)

// Command core is the Go half of the NCCL network plugin, built with -buildmode=c-shared. The C half, in ../shim, loads it. Package
// transport has all behaviour; this package only translates.
//
// C calls the functions in cgo.go, which call package transport. A change to shim/seam.h needs a new IBX_SEAM.
package main

func main() {}
