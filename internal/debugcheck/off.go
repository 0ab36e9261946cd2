//go:build !race && !ibverbxdebug

package debugcheck

// On reports whether checks are built in.
const On = false

// Guard does nothing in ordinary builds.
type Guard struct{}

// Enter does nothing in ordinary builds.
func (*Guard) Enter(_, _ string) {}

// Leave does nothing in ordinary builds.
func (*Guard) Leave() {}
