//go:build linux && cgo && (amd64 || arm64)

// Command core is the Go half of the NCCL network plugin, built with -buildmode=c-shared. The C half, in ../shim, loads it. Package
// transport has all behaviour; this package only translates.
package main

func main() {}
