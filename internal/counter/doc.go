// Package counter provides a [Counter] that one goroutine writes ([Counter.Add]) and any goroutine reads
// ([Counter.Load]). Writing is as cheap as writing a variable.
package counter
