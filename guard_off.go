//go:build !race && !ibverbxdebug

package ibverbx

// guard does nothing in ordinary builds: see guard_on.go.
type guard struct{}

func (*guard) enter(string) {}
func (*guard) leave()       {}

// checkTransition does nothing in ordinary builds: see guard_on.go.
func checkTransition(uint16, laneState, laneState) {}
