package peer

import (
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"ibverbx"
	"ibverbx/bootstrap"
	"ibverbx/verbs"
)

// Config says what a side has and wants. Both sides have one; they need not be alike.
type Config struct {
	// Auth says how the two sides prove their identity to each other: certificates or a token.
	Auth bootstrap.Config

	// Rails are NICs that are open. They must outlive the Session and stay the caller's.
	// With failover their events belong to one Session at a time.
	Rails []ibverbx.RailConfig
	// Open opens NICs if Rails is empty; the Session closes them. SoftNICs and Devices
	// return such functions. Nil means one software NIC on the address that leads to the
	// peer.
	Open func() (NICs, error)

	// Regions is the memory that the peer may use. At most 1024.
	Regions []RegionConfig

	// QP describes the VirtualQP. Lanes, SendDepth, RecvDepth, LaneDepth and FragmentSize
	// are wishes: if both sides have one the smaller counts, and neither gets more than
	// both can do. Zero means that the peer may choose, within reason: all lanes together
	// then hold some 2^18 requests at the most. Scheme and Control must be zero: see Schemes
	// and NoFailover.
	QP ibverbx.Config
	// Schemes are those that this side takes, the best first. The dialer's order counts.
	// Empty means all: Tally, DQPLB, Spray.
	Schemes []ibverbx.Scheme
	// MTU is the path MTU in bytes, a wish as well. Zero means what both sides' ports
	// have.
	MTU int
	// Minimum is what this side needs: an agreement below it is a MismatchError. A zero field
	// asks for nothing.
	Minimum Limits
	// NoFailover does without a control channel: the loss of a lane ends the VirtualQP. It
	// is so if one side wants it.
	NoFailover bool

	// CQ describes the VirtualCQ. Zero means a depth that is enough, and a Waker.
	CQ ibverbx.CQConfig
	// Timeout is how long it may take from meeting the peer until it is ready. Zero means
	// 30 s.
	Timeout time.Duration
}

// Limits are numbers that two sides agree on.
type Limits struct {
	Lanes, SendDepth, RecvDepth, LaneDepth int
	FragmentSize                           int // bytes
	MTU                                    int // bytes
}

// NICs are open NICs.
type NICs struct {
	Rails []ibverbx.RailConfig
	// Close closes them. Nil means that there is nothing to close.
	Close func() error
}

// RegionConfig describes memory that the peer may use.
type RegionConfig struct {
	// Name is how both sides refer to the memory (Session.Local, Session.Remote): at most 64
	// bytes of UTF-8, unique within Config.Regions. It may be empty.
	Name string
	// Memory is the memory; it stays the caller's. Nil means that Size bytes are
	// allocated, which the Session frees.
	Memory *verbs.Memory
	Size   int
	// Access is what the peer may do. Zero means verbs.AccessAll.
	Access verbs.Access
}

const (
	defaultTimeout = 30 * time.Second
	maxRegions     = 1024
	maxRegionName  = 64
)

// withDefaults returns c with what was left zero.
func (c Config) withDefaults() Config {
	if c.Timeout == 0 {
		c.Timeout = defaultTimeout
	}
	if len(c.Schemes) == 0 {
		c.Schemes = []ibverbx.Scheme{ibverbx.Tally, ibverbx.DQPLB, ibverbx.Spray}
	}
	return c
}

// validate checks what the peer has no part in.
func (c *Config) validate() error {
	switch {
	case c.QP.Control != nil:
		return verbs.Invalidf("Config.QP.Control is set: the connection to the peer is the control channel")
	case c.QP.Scheme != 0:
		return verbs.Invalidf("Config.QP.Scheme is %s: say it in Config.Schemes", c.QP.Scheme)
	case c.QP.CxxPeer:
		return verbs.Invalidf("Config.QP.CxxPeer: the C++ original does not speak this protocol")
	case c.Timeout < 0:
		return verbs.Invalidf("Config.Timeout is %v: want more than 0", c.Timeout)
	case len(c.Regions) > maxRegions:
		return verbs.Invalidf("Config.Regions has %d: want at most %d", len(c.Regions), maxRegions)
	}
	for i := range c.Regions {
		r := &c.Regions[i]
		switch {
		case len(r.Name) > maxRegionName || !utf8.ValidString(r.Name):
			return verbs.Invalidf("Config.Regions[%d].Name has %d bytes: want at most %d of UTF-8", i, len(r.Name), maxRegionName)
		case slices.ContainsFunc(c.Regions[:i], func(other RegionConfig) bool { return other.Name == r.Name }):
			return verbs.Invalidf("Config.Regions[%d].Name is %q, as another region's: names must differ", i, r.Name)
		case r.Memory == nil && r.Size < 1:
			return verbs.Invalidf("Config.Regions[%d] (%q) has neither Memory nor a Size above 0", i, r.Name)
		}
	}
	if c.MTU != 0 {
		if _, err := verbs.MTUOf(c.MTU); err != nil {
			return fmt.Errorf("Config.MTU: %w", err)
		}
	}
	return nil
}
