package measure

// Transport is what makes the QPs of a test reliable.
type Transport string

// Transports.
const (
	// TransportRC is the RC QPs of the device.
	TransportRC Transport = "rc"
	// TransportUC is RC QPs that package reliable makes of many UC QPs each. The caller that
	// opens the rails wraps them.
	TransportUC Transport = "uc"

	// TransportRaw is what a report calls raw UC and UD QPs: nothing makes them reliable.
	TransportRaw Transport = "raw"
)

// ParseTransport returns the transport of that name.
func ParseTransport(s string) (Transport, error) {
	switch t := Transport(s); t {
	case TransportRC, TransportUC:
		return t, nil
	case TransportRaw: // only by --connection
	}
	return "", Refuse("transport", s, "there is no such transport", "use rc or uc")
}

// transport is what a report says of the QPs.
func (c *Config) transport() Transport {
	if !c.virtual() {
		return TransportRaw
	}
	return c.Transport
}

// NICRequest is what a test wants of the NICs of an end.
type NICRequest struct {
	// Rails is how many NICs there should be.
	Rails int
	// Transport is TransportUC if they are to be wrapped.
	Transport Transport
	// Lanes is how many lanes there will be over all rails, not counting those for messages
	// and notifications.
	Lanes int
	// Memory is the most that receives of wrapped NICs may take, in bytes. Zero means no
	// limit.
	Memory int
	// Impair is what the NICs do to the packets that they send.
	Impair []Impair
}

// NICRequest returns what a completed Config wants of the NICs of an end.
func (c *Config) NICRequest() NICRequest {
	return NICRequest{Rails: c.Rails, Transport: c.Transport, Lanes: c.QPs, Impair: c.Impair}
}
