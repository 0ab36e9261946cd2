package peer

import (
	"fmt"
	"net/netip"
	"slices"
	"time"
	"unicode/utf8"

	"ibverbx"
	"ibverbx/bootstrap"
	"ibverbx/verbs"
)

// Config describes one side of a Session. The two sides may have different Configs.
type Config struct {
	// Auth is how the two sides authenticate each other: certificates or a token.
	Auth bootstrap.Config

	// Rails are open NICs. The caller keeps them, and they must outlive the Session. The Sessions
	// of a Listener share them. Otherwise, with failover, the events of a NIC belong to one
	// Session at a time, unless On is set.
	Rails []ibverbx.RailConfig
	// Open opens the NICs if Rails is empty, and the Session closes them. SoftNICs and
	// Devices return such functions. Nil means one software NIC on the local address of the
	// connection.
	Open func() (NICs, error)
	// Link is how the two sides reach each other if all rails are software NICs on UDP. Shared memory replaces the
	// rails, one by one. Empty means LinkAuto for the NIC that the Session opens by default, and LinkUDP with
	// Rails or Open.
	Link Link
	// Path is the Path of every rail whose own Path is zero: quality of service, retries and
	// rows of tables for this side. The peer has its own.
	Path verbs.PathConfig

	// SharedCQ puts the Session on an existing VirtualCQ and its Rails, which other Sessions may use
	// too. SharedCQ calls step with the VirtualCQ while no other goroutine uses it, for example with a
	// mutex held, and returns the error of step. Connecting takes several steps, and
	// Session.Close takes one. A step does not wait for the peer. The program polls the VirtualCQ
	// and closes it after the Sessions. It must not hold the mutex in VirtualCQ.Wait, which sleeps as
	// long as nothing happens. Then Rails, Open, Path and CQ must be zero. Nil means a
	// VirtualCQ for this Session alone.
	SharedCQ func(step func(*ibverbx.VirtualCQ) error) error

	// OnServiceMessage gets the messages of kind bootstrap.KindService that arrive while the Session is being made, in
	// order. It is called by the goroutine that connects. Nil means that such a message is an error.
	OnServiceMessage func(body []byte)

	// PeerNetworks are networks that the peer's NICs may be on. Without it they must be on a network
	// of this host, have the peer's address of the connection, or be named in its certificate. Routed
	// fabrics need it.
	PeerNetworks []netip.Prefix

	// Regions is the memory that the peer may use, at most 1024 regions.
	Regions []RegionConfig

	// QP describes the VirtualQP. Lanes, SendDepth, RecvDepth, LaneDepth and FragmentSize are
	// preferences. If both sides set one, the smaller value is used, within the limits of
	// both. Zero lets the peer choose, but then all lanes together hold about 2^18 requests
	// at most. Scheme and Control must be zero: use Schemes and NoFailover. Deadline and
	// KeepAtomics have no effect if the peer has disabled failover (Session.Agreed). Log also gets
	// a record when the Session is connected and when it is closed, and all records have the
	// peer's address.
	QP ibverbx.Config
	// Schemes are the schemes that this side accepts, the preferred one first. The dialer's
	// order decides. Empty means all: Tally, DQPLB, Spray.
	Schemes []ibverbx.Scheme
	// MTU is the preferred path MTU in bytes. Zero means the largest that both ports have.
	MTU int
	// Minimum holds the smallest values that this side accepts. Less is a MismatchError. A
	// zero field sets no minimum.
	Minimum Limits
	// NoFailover disables the control channel, so losing a lane ends the VirtualQP. It
	// takes effect on both sides if either sets it.
	NoFailover bool

	// Unsealed turns off sealing: encryption and authentication of the packets (docs/wire.md). Whoever sees
	// them can then read and change all data and end the session. Both sides must set it, or neither. Without
	// it packets are sealed if the two sides met over TLS and all NICs of both can seal, which software NICs
	// over UDP can and others cannot (Agreement.Sealed).
	Unsealed bool
	// RequireSealed makes a Session without sealing a MismatchError, before any key is sent: over plain text, or with a
	// NIC that cannot seal. Shared memory is accepted, because it has no packets.
	RequireSealed bool

	// CQ describes the VirtualCQ. Zero means a sufficient depth and a Waker.
	CQ ibverbx.CQConfig
	// Timeout bounds the time from authentication until the peer is ready. Zero means 30 s.
	Timeout time.Duration

	// base are the Rails that the Sessions of a Listener fork; nil if each opens its own.
	base *ibverbx.Rails
}

// Limits are numbers that the two sides negotiate.
type Limits struct {
	Lanes, SendDepth, RecvDepth, LaneDepth int
	FragmentSize                           int // bytes
	MTU                                    int // bytes
}

// NICs are open NICs.
type NICs struct {
	Rails []ibverbx.RailConfig
	// Close closes the NICs. Nil means that there is nothing to close.
	Close func() error
}

// RegionConfig describes memory that the peer may use.
type RegionConfig struct {
	// Name identifies the memory on both sides (Session.Local, Session.Remote). It has at
	// most 64 bytes of UTF-8, is unique within Config.Regions, and may be empty.
	Name string
	// Memory is the memory, which the caller keeps. Nil means that the Session allocates
	// Size bytes and frees them.
	Memory *verbs.Memory
	Size   int
	// DMABuf is a part of a dma-buf, in place of Memory and Size. Nil means none.
	DMABuf *DMABufConfig
	// Access is what the peer may do. Zero means verbs.AccessAll.
	Access verbs.Access
	// For reports whether a peer gets the region. A Session with another peer does not have it.
	// Nil means every peer.
	For func(bootstrap.Peer) bool
}

// DMABufConfig names Length bytes at Offset of a dma-buf, such as memory of a GPU. The caller keeps FD and may
// close it when the Session is made.
type DMABufConfig struct {
	FD             int
	Offset, Length uint64
}

const (
	defaultTimeout = 30 * time.Second
	maxRegions     = 1024
	maxRegionName  = 64
)

// withDefaults returns c with defaults in place of zeros.
func (c Config) withDefaults() Config {
	if c.Timeout == 0 {
		c.Timeout = defaultTimeout
	}
	if len(c.Schemes) == 0 {
		c.Schemes = []ibverbx.Scheme{ibverbx.Tally, ibverbx.DQPLB, ibverbx.Spray}
	}
	return c
}

// validate checks everything that does not depend on the peer.
func (c *Config) validate() error {
	switch {
	case c.Link != "" && c.Link != LinkAuto && c.Link != LinkShm && c.Link != LinkUDP:
		return verbs.Invalidf("Config.Link is %q: want auto, shm or udp", c.Link)
	case c.QP.Control != nil:
		return verbs.Invalidf("Config.QP.Control is set: the connection to the peer is the control channel")
	case c.QP.Scheme != 0:
		return verbs.Invalidf("Config.QP.Scheme is %s: use Config.Schemes instead", c.QP.Scheme)
	case c.Unsealed && c.RequireSealed:
		return verbs.Invalidf("Config.Unsealed and Config.RequireSealed are both set: want one of them")
	case c.NoFailover && (c.QP.Deadline != 0 || c.QP.KeepAtomics):
		return verbs.Invalidf("Config.QP.Deadline or Config.QP.KeepAtomics is set: they need failover, and Config.NoFailover is set")
	case c.QP.CxxPeer:
		return verbs.Invalidf("Config.QP.CxxPeer is set: the C++ implementation does not support this protocol")
	case slices.ContainsFunc(c.PeerNetworks, func(p netip.Prefix) bool { return !p.IsValid() }):
		return verbs.Invalidf("Config.PeerNetworks has %v: want valid prefixes", c.PeerNetworks)
	case c.SharedCQ != nil && (len(c.Rails) > 0 || c.Open != nil || c.Path != (verbs.PathConfig{}) || c.CQ != (ibverbx.CQConfig{})):
		return verbs.Invalidf("Config.SharedCQ is set, and Rails, Open, Path or CQ: the VirtualCQ of SharedCQ has NICs already")
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
			return verbs.Invalidf("Config.Regions[%d].Name is %q, the same as another region's: names must differ", i, r.Name)
		case r.DMABuf != nil && (r.Memory != nil || r.Size != 0):
			return verbs.Invalidf("Config.Regions[%d] (%q) has a DMABuf, and Memory or a Size: want one of them", i, r.Name)
		case r.DMABuf == nil && r.Memory == nil && r.Size < 1:
			return verbs.Invalidf("Config.Regions[%d] (%q) has neither Memory, nor a Size above 0, nor a DMABuf", i, r.Name)
		}
	}
	if c.MTU != 0 {
		if _, err := verbs.MTUOf(c.MTU); err != nil {
			return fmt.Errorf("Config.MTU: %w", err)
		}
	}
	return nil
}
