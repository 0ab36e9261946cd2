// Package counter provides a counter that one goroutine writes and any goroutine reads. Writing costs no
// more than writing a variable.
package counter
