//go:build linux && cgo && (amd64 || arm64)

// Command core is the Go half of the drop-in libibverbs.so.1: softnic behind the functions of
// dropin/shim/abi.h. It is built with -buildmode=c-shared and loaded into C processes. Run as a
// program, it exits immediately.
//
// C calls the ibx_ functions in cgo.go, which call softnic and package cm. A change to abi.h needs a
// new IBX_ABI and, for a structure, the same change in abi.go. Everything else may change freely.
package main

func main() {}
