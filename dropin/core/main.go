//go:build linux && cgo && (amd64 || arm64)

// Command core is the Go half of the drop-in libibverbs.so.1: softnic behind the functions of
// dropin/shim/abi.h. It is built with -buildmode=c-shared and loaded into C processes. Run as a
// program, it exits immediately.
package main

func main() {}
