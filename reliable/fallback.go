package reliable

import "ibverbx/verbs"

// Carrier is implemented by every context that Wrap returns.
type Carrier interface {
	// Carrier is what RC QPs of the context are made of: verbs.UC, or verbs.RC if the device
	// cannot carry paths and Config.FallBackToRC has let Wrap return its own QPs.
	Carrier() verbs.QPType
}

// Carrier implements the interface of that name.
func (d *device) Carrier() verbs.QPType { return verbs.UC }

// plain is a context of a device without UC: everything is that of the device. A QP of it
// connects to a QP of another plain context, or of one that was not wrapped, and to none that is
// made of paths: those want a card, and refuse an endpoint without.
type plain struct {
	verbs.Context
	cfg Config
}

var (
	_ Carrier = plain{}
	_ Stepper = plain{}
)

// Carrier says that QPs are the device's own.
func (plain) Carrier() verbs.QPType { return verbs.RC }

// Step has nothing to do: the device does it all.
func (plain) Step() (next int64, pending bool) { return 0, false }

// Device returns the device; what it opens falls back, too.
func (p plain) Device() verbs.Device { return wrapped{p.Context.Device(), p.cfg} }

// QueryDevice says by the name of the provider that this is not what was asked for.
func (p plain) QueryDevice() (verbs.DeviceAttr, error) {
	a, err := p.Context.QueryDevice()
	a.Provider = "RC, instead of reliable, over " + a.Provider
	return a, err
}
