// Package tidy holds the rules of the source tree that no compiler or linter checks: which
// package may import which, how long a file or function may be, where clocks, goroutines,
// cgo and unsafe are allowed. TestTidy applies them to the tree; the other tests break a
// small tree in one place at a time, to show that each rule can fail.
package tidy
