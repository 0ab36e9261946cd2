//go:build !race && !ibverbxdebug

package debugcheck

// On reports whether checks are built in.
const On = false

// Guard is empty in ordinary builds.
type Guard struct{}

// Enter is a no-op in ordinary builds.
func (*Guard) Enter(_, _ string) {}

// Leave is a no-op in ordinary builds.
func (*Guard) Leave() {}
