//go:build race || ibverbxdebug

package ibverbx

import (
	"fmt"
	"sync/atomic"
)

// guard panics on concurrent use of a VirtualCQ and its VirtualQPs, as Go's maps do. It exists under the
// race detector and with the build tag ibverbxdebug.
type guard struct{ busy atomic.Bool }

func (g *guard) enter(op string) {
	if g.busy.Swap(true) {
		panic("ibverbx: " + op + ": concurrent use of a VirtualCQ or its VirtualQPs")
	}
}

func (g *guard) leave() { g.busy.Store(false) }

// checkTransition panics if a lane may not go from one state to the other.
func checkTransition(lane uint16, from, to laneState) {
	if transitions[from]&(1<<to) == 0 {
		panic(fmt.Sprintf("ibverbx: lane %d goes from %s to %s", lane, from, to))
	}
}
