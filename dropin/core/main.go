//go:build linux && cgo && (amd64 || arm64)

// Command core is the Go half of the drop-in libibverbs.so.1: softnic behind the functions of
// dropin/shim/abi.h. It is built with -buildmode=c-shared and loaded into processes written without Go.
// It does nothing as a program.
package main

func main() {}
