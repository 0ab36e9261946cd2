package cm

import (
	"net/netip"
	"time"

	"ibverbx/verbs"
)

// Device is a NIC that connections can use.
type Device struct {
	// GUID and Index identify it to librdmacm, as ibv_get_device_guid (in host order) and ibv_get_device_index do.
	GUID  verbs.GUID
	Index uint32
	Addr  netip.Addr
	GID   verbs.GID
	LID   uint16
	MTU   verbs.MTU
}

// Tokens counts the events of a File, for programs that wait for them. The Manager calls it with a lock held.
type Tokens interface {
	Add()
	// Drop removes n tokens, or fewer if a waiting thread has taken one already.
	Drop(n int)
}

// Config configures a Manager.
type Config struct {
	Devices []Device // at least one
	Link    Link
	// Later calls f after d, unless stop is called first.
	Later func(d time.Duration, f func()) (stop func())
	// Random draws starting PSNs.
	Random func() uint32
	// Unreported reports whether a QP has completions to poll. It may block. Nil means never.
	Unreported func(qpn uint32) bool
	// Report is called for the user when an id listens or connects. Nil disables it.
	Report func(format string, args ...any)
}
