//go:build race || ibverbxdebug

package debugcheck

import "sync/atomic"

// On reports whether checks are built in.
const On = true

// Guard panics on concurrent use of an object that is for one goroutine at a time, as Go's maps do.
// The zero value is ready to use.
type Guard struct{ busy atomic.Bool }

// Enter starts a call named op. It panics with the text misuse during another call.
func (g *Guard) Enter(op, misuse string) {
	if g.busy.Swap(true) {
		panic(op + ": " + misuse)
	}
}

// Leave completes the call.
func (g *Guard) Leave() { g.busy.Store(false) }
