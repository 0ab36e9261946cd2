// Package tidy checks rules of the source tree beyond compiler and linters: allowed imports, the length of
// files and functions, and where clocks, goroutines, cgo and unsafe may be used. TestTidy applies them to the
// tree; the other tests break a small tree in one place at a time, to show that each rule can fail. The
// allowed imports are in rules_test.go (arrows). A new rule needs a case in blemishes_test.go.
package tidy
