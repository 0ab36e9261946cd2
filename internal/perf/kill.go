package perf

import (
	"fmt"
	"time"

	"ibverbx/verbs"
)

const (
	defaultKillAt   = time.Second
	defaultKillBack = time.Second
	// killSize is the message size if none was asked for: large enough to be cut.
	killSize = 1 << 20
	// afterMin is how long a row goes on at least behind the rail's return, if no
	// Duration was asked for.
	afterMin = 200 * time.Millisecond
)

// Kill says that the test loses a rail under load and gets it back: the ports of both NICs
// of the rail go down and, later, up. It needs a VirtualQP with lanes on several rails, and
// implies Check. There is one row.
type Kill struct {
	// On says that a rail is to be lost. Otherwise all else must be zero.
	On bool
	// Rail is the rail.
	Rail int
	// At is when it is lost, after the start of the measurement. If zero, 1 s.
	At time.Duration
	// Back is how long it is gone. If zero, 1 s. If Config.Duration is zero the row lasts
	// as long again behind the return as before the loss.
	Back time.Duration
	// SetPort takes the ports of both NICs of a rail down or up. It is called by the
	// goroutine that runs the test.
	SetPort func(rail int, up bool)
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
	c.Check = true
}

// validateKill refuses what cannot lose a rail and live on.
func (c *Config) validateKill() error {
	k := &c.Kill
	where := flagValue("kill-rail", k.Rail)
	switch {
	case !k.On && k.At != 0:
		return refuse(flagValue("at", k.At), "it says when --kill-rail takes a rail down", "add --kill-rail, or drop it")
	case !k.On && k.Back != 0:
		return refuse(flagValue("back", k.Back), "it says how long --kill-rail takes a rail down", "add --kill-rail, or drop it")
	case !k.On:
		return nil
	case !c.virtual():
		return refuse(where, fmt.Sprintf("%s QPs are measured one by one, and nothing takes over from them", c.Connection), "use --connection "+verbs.RC.String())
	case c.Op == Atomic:
		return refuse(where, "an atomic that was under way is in doubt and cannot be repeated", "measure write, read or send")
	case c.Mode == Latency:
		return refuse(where, "a rail is lost under load, and latency is measured without", "drop --kill-rail or --lat")
	case c.QPs == 1:
		return refuse(where, "a single lane has no other that takes over", "use --qp 2 or more")
	case c.Rails == 1:
		return refuse(where, "a single rail has no other that takes over", "use --rails 2 or more")
	case k.Rail < 0 || k.Rail >= c.Rails:
		return refuse(where, fmt.Sprintf("there are %d rails", c.Rails), fmt.Sprintf("use 0 to %d", c.Rails-1))
	case k.Rail >= c.QPs:
		return refuse(where, fmt.Sprintf("%d lanes are on rails 0 to %d, and it has none", c.QPs, c.QPs-1), "use a rail with lanes, or more --qp")
	case c.All || len(c.Sizes) > 1:
		return refuse(where, "it shows one transfer, of one size", "use one --size")
	case c.Iterations > 0:
		return refuse(where, "the rail is lost at a time, so that the transfer must last a time", "use --duration instead of --iters")
	}
	return k.validateTimes(c.Duration)
}

// validateTimes refuses a loss or a return that the row would not see.
func (k *Kill) validateTimes(duration time.Duration) error {
	switch {
	case k.At < 0:
		return refuse(flagValue("at", k.At), "the loss comes after the start", "use a time above 0, such as 2s")
	case k.Back < 0:
		return refuse(flagValue("back", k.Back), "the return comes after the loss", "use a time above 0, such as 1s")
	case k.At >= duration:
		return refuse(flagValue("at", k.At), fmt.Sprintf("the transfer ends after %v", duration), "use a longer --duration, or a smaller --at")
	case k.Back >= duration-k.At:
		return refuse(flagValue("back", k.Back), fmt.Sprintf("lost at %v, the rail would be back after the end at %v", k.At, duration),
			"use a longer --duration, or a smaller --back")
	}
	return nil
}
