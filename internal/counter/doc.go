// Package counter provides a counter that one goroutine writes and any goroutine reads. Writing is
// as cheap as writing a variable.
package counter
