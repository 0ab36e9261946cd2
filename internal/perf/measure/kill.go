package measure

import (
	"time"

	"ibverbx"
	"ibverbx/verbs"
)

const (
	defaultKillAt   = time.Second
	defaultKillBack = time.Second
	// killSize is the message size if none was asked for: large enough to be cut.
	killSize = 1 << 20
	// afterMin is how long a row goes on at least after the rail is back, if no Duration was
	// asked for.
	afterMin = 200 * time.Millisecond
	// phaseMessages and phaseBytes are what must come through before the loss, during it and after the
	// return: the less of the two. A process that had no processor for a while has moved nothing, and a
	// rate over that time says nothing about the rails.
	phaseMessages = 256
	phaseBytes    = 64 << 20
)

// Kill makes the test lose a rail under load and get it back: the ports of both NICs of the rail
// go down and, later, up. Between processes only the port of the client does. It needs a VirtualQP with lanes on several rails, and implies Check.
// There is one row.
type Kill struct {
	// On means that a rail is to be lost. Otherwise all else must be zero.
	On bool
	// Rail is the rail.
	Rail int
	// At is when it is lost, after the start of the measurement, or when there was enough traffic before.
	// If zero, 1 s.
	At time.Duration
	// Back is how long it is lost, or until there was enough traffic meanwhile. If zero, 1 s. If Config.Duration is zero the row lasts as
	// long after the return as before the loss.
	Back time.Duration
	// SetPort takes the ports of both NICs of a rail down or up, in the goroutine that runs the test. If nil, the test calls
	// SetPort of software NICs.
	SetPort func(rail int, up bool)
}

// Live makes the test one long transfer that people watch. Lost lanes are rebuilt, and messages are compared while others
// are in flight. Kill implies it.
type Live struct {
	// On enables it. Otherwise all else must be zero.
	On bool
	// Patience limits the time without any completion. Zero means 10 s. It is also ibverbx.Config.Deadline.
	Patience time.Duration
	// Idle is the sleep after a round without completions. Zero means none.
	Idle time.Duration
}

// withDefaults fills in what a Config with a Kill implies.
func (k *Kill) withDefaults(c *Config) {
	if k.At == 0 {
		k.At = defaultKillAt
	}
	if k.Back == 0 {
		k.Back = defaultKillBack
	}
	if c.Iterations == 0 && c.Duration == 0 {
		c.Duration = k.At + k.Back + max(k.At, afterMin)
	}
	c.Check, c.Live.On = true, true
}

// control sets SetPort, unless it is set, for the NICs of the ends in this process. It refuses NICs whose ports this program
// does not control.
func (k *Kill) control(ends ...[]ibverbx.RailConfig) error {
	if !k.On || k.SetPort != nil {
		return nil
	}
	var nics []interface{ SetPort(up bool) }
	for _, rails := range ends {
		device := rails[k.Rail].Context.Device()
		if wrapped, ok := device.(interface{ Unwrap() verbs.Device }); ok {
			device = wrapped.Unwrap()
		}
		nic, ok := device.(interface{ SetPort(up bool) })
		if !ok {
			return Refuse("kill-rail", k.Rail, "this program cannot take the ports of real NICs down",
				"use --provider softnic, or leave it out and pull a cable: the test goes on, and --interval shows it")
		}
		nics = append(nics, nic)
	}
	k.SetPort = func(_ int, up bool) {
		for _, nic := range nics {
			nic.SetPort(up)
		}
	}
	return nil
}
