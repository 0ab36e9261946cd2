package perf

import (
	"fmt"

	"ibverbx/verbs"
)

// Transport is what makes the QPs of a test reliable.
type Transport string

// Transports.
const (
	// TransportRC is the RC QPs of the device.
	TransportRC Transport = "rc"
	// TransportUC is RC QPs that package reliable makes of many UC QPs each. This package
	// does not make them: whoever opens the rails wraps them.
	TransportUC Transport = "uc"

	// TransportRaw is what a report calls UC and UD QPs that are measured by themselves:
	// nothing makes them reliable.
	TransportRaw Transport = "raw"
)

// ParseTransport returns the transport of that name.
func ParseTransport(s string) (Transport, error) {
	switch t := Transport(s); t {
	case TransportRC, TransportUC:
		return t, nil
	case TransportRaw: // by --connection only: one way to say it
	}
	return "", &ConfigError{Where: "--transport " + s, Problem: "there is no such transport", Fix: "use rc or uc"}
}

// transport is what a report says of the QPs.
func (c *Config) transport() Transport {
	if !c.virtual() {
		return TransportRaw
	}
	return c.Transport
}

// validateReliable refuses what cannot be made of UC QPs.
func (c *Config) validateReliable() error {
	if _, err := ParseTransport(string(c.Transport)); err != nil {
		return err
	}
	if c.Transport != TransportRC && !c.virtual() {
		problem := "it makes RC QPs of UC QPs, and --connection UC measures UC QPs as they are"
		if c.Connection == verbs.UD {
			problem = "it makes RC QPs of UC QPs, and there are no RC QPs in a test of UD"
		}
		return refuse(flagValue("transport", c.Transport), problem, fmt.Sprintf("drop it, or drop --connection %s", c.Connection))
	}
	return nil
}

// Wish is what a test wants of the NICs of an end.
type Wish struct {
	// Rails is how many there should be.
	Rails int
	// Transport says whether they are to be wrapped, by TransportUC.
	Transport Transport
	// Lanes is how many lanes there will be, over all rails, besides those for messages
	// and notifications.
	Lanes int
	// Memory is the most that receives of wrapped NICs may take, in bytes. Zero means what
	// they need.
	Memory int
}

// Wish returns what a completed Config wants of the NICs of an end.
func (c *Config) Wish() Wish { return Wish{Rails: c.Rails, Transport: c.Transport, Lanes: c.QPs} }
