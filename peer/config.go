package peer

import (
	"cmp"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"ibverbx"
	"ibverbx/bootstrap"
	"ibverbx/verbs"
)

// Config configures one side of a Session. The two sides may use different Configs.
type Config struct {
	// Auth configures mutual authentication by certificate or token.
	Auth bootstrap.Config

	// Rails are open NICs. The caller keeps ownership; they must outlive the Session. All Sessions of a Listener share them. Otherwise,
	// with failover, a NIC's events belong to one Session at a time, unless SharedCQ is set.
	Rails []ibverbx.RailConfig
	// Open opens the NICs if Rails is empty; the Session closes them. OpenSoftNICs and OpenDevices return such functions. Nil opens the NICs
	// described by Fabric.
	Open func() (NICs, error)
	// Fabric describes the NICs and the way Sessions use them. With Rails, Open or SharedCQ it must not select NICs
	// (Fabric.Opened).
	Fabric

	// SharedCQ puts the Session on an existing VirtualCQ and its Rails, shared with other Sessions. SharedCQ must call step with the
	// VirtualCQ while no other goroutine uses it, for example with a mutex held, and return the error of step. Connecting takes several
	// steps, Session.Close takes one; a step never waits for the peer. The program polls the VirtualCQ and closes it after the Sessions. It
	// must not hold the mutex in VirtualCQ.Wait, which sleeps until an event. Rails, Open, Path and CQ must be zero. Nil creates a
	// VirtualCQ for this Session alone.
	SharedCQ func(step func(*ibverbx.VirtualCQ) error) error

	// OnServiceMessage receives messages of kind bootstrap.KindService that arrive while the Session is being established, in order, on the
	// connecting goroutine. If it is nil, such a message is a protocol error.
	OnServiceMessage func(body []byte)

	// Regions is the memory exposed to the peer, at most 1024 regions.
	Regions []RegionConfig

	// QP configures the VirtualQP. Lanes, SendDepth, RecvDepth, LaneDepth and FragmentSize are preferences: if both sides set one, the
	// smaller value is used, within the limits of both. Zero lets the peer choose; all lanes together then hold at most about 2^18
	// requests. Scheme and Control must be zero: use Schemes and NoFailover. Deadline and KeepAtomics have no effect if the peer has
	// disabled failover (Session.Agreed). Log also receives a record when the Session is connected and when it is closed; every record
	// includes the peer's address.
	QP ibverbx.Config
	// Schemes are the accepted schemes in order of preference. The dialer's order decides. Empty means all: Tally, DQPLB, Spray.
	Schemes []ibverbx.Scheme
	// MTU is the preferred path MTU in bytes. Zero means the largest supported by both ports.
	MTU int
	// Minimum holds the smallest accepted values. If the peer cannot meet them, connecting fails with a MismatchError. Zero fields are not
	// checked.
	Minimum Limits
	// NoFailover disables the control channel, so the loss of a lane fails the VirtualQP. Setting it on one side suffices.
	NoFailover bool

	// CQ configures the VirtualCQ. Zero means a sufficient depth and a Waker.
	CQ ibverbx.CQConfig
	// Timeout bounds the time from authentication until the peer is ready. Zero means 30 s; negative values are invalid.
	Timeout time.Duration

	// base holds the Rails forked by a Listener's Sessions; nil if each opens separate ones.
	base *ibverbx.Rails
}

// Limits holds the negotiated numbers.
type Limits struct {
	// Lanes is the number of lanes; SendDepth, RecvDepth and LaneDepth are queue depths in requests.
	Lanes, SendDepth, RecvDepth, LaneDepth int
	// FragmentSize is in bytes.
	FragmentSize int
	// MTU is the path MTU in bytes.
	MTU int
}

// NICs is the result of Config.Open: open NICs.
type NICs struct {
	// Rails describes one rail per NIC port.
	Rails []ibverbx.RailConfig
	// Close closes the NICs; it may be nil.
	Close func() error
}

// RegionConfig describes memory exposed to the peer. One of Memory, Size and DMABuf is required.
type RegionConfig struct {
	// Name identifies the memory on both sides (Session.Local, Session.Remote). It has at most 64 bytes of UTF-8, is unique within
	// Config.Regions, and may be empty.
	Name string
	// Memory is existing memory, owned by the caller. It must outlive the Session.
	Memory *verbs.Memory
	// Size makes the Session allocate and free that many bytes if Memory is nil.
	Size int
	// DMABuf is a range of a dma-buf, instead of Memory and Size.
	DMABuf *DMABufConfig
	// Access is the peer's access to the memory. Zero means verbs.AccessAll.
	Access verbs.Access
	// For selects the peers that get the region; Sessions with other peers do not contain it. Nil selects every peer.
	For func(bootstrap.Peer) bool
}

// DMABufConfig is a range of a dma-buf, for example GPU memory.
type DMABufConfig struct {
	// FD is the dma-buf's file descriptor. The caller owns it and may close it once the Session is established.
	FD int
	// Offset and Length are in bytes.
	Offset, Length uint64
}

const (
	defaultTimeout = 30 * time.Second
	maxRegions     = 1024
	maxRegionName  = 64
)

// withDefaults returns c with defaults applied.
func (c Config) withDefaults() Config {
	if c.Timeout == 0 {
		c.Timeout = defaultTimeout
	}
	c.Link = c.EffectiveLink(len(c.Rails) > 0 || c.Open != nil || c.SharedCQ != nil)
	c.QP.Lanes = cmp.Or(c.QP.Lanes, c.Lanes)
	if len(c.Schemes) == 0 {
		c.Schemes = []ibverbx.Scheme{ibverbx.Tally, ibverbx.DQPLB, ibverbx.Spray}
	}
	return c
}

// validate checks everything that does not depend on the peer.
func (c *Config) validate() error {
	err := c.CheckFabric()
	if err == nil && (len(c.Rails) > 0 || c.Open != nil || c.SharedCQ != nil) {
		err = c.checkOpened("Config")
	}
	switch {
	case err != nil:
		return err
	case c.QP.Control != nil:
		return verbs.Invalidf("Config.QP.Control is set: the connection to the peer is the control channel")
	case c.QP.Scheme != 0:
		return verbs.Invalidf("Config.QP.Scheme is %s: use Config.Schemes instead", c.QP.Scheme)
	case c.NoFailover && (c.QP.Deadline != 0 || c.QP.KeepAtomics):
		return verbs.Invalidf("Config.QP.Deadline or Config.QP.KeepAtomics is set: they need failover, and Config.NoFailover is set")
	case c.QP.CxxPeer:
		return verbs.Invalidf("Config.QP.CxxPeer is set: the C++ implementation does not support this protocol")
	case c.SharedCQ != nil && (len(c.Rails) > 0 || c.Open != nil || c.Path != (verbs.PathConfig{}) || c.CQ != (ibverbx.CQConfig{})):
		return verbs.Invalidf("Config.SharedCQ is set, and Rails, Open, Path or CQ: the VirtualCQ of SharedCQ has NICs already")
	case (len(c.Rails) > 0 || c.SharedCQ != nil) && c.Transport.Carrier() != 0:
		return verbs.Invalidf("Config.Transport is %s: the NICs are open; wrap them with reliable.Wrap, or use Config.Open", c.Transport)
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
