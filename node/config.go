package node

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"time"

	"ibverbx/bootstrap"
	"ibverbx/peer"
	"ibverbx/verbs"
)

// DefaultPort is the port that programs listen on if their users name none.
const DefaultPort = "18510"

// Config describes a Node. Auth must be set.
type Config struct {
	// Auth is how the two sides authenticate each other: certificates or a token. With a Name, a peer that is restarted is
	// still the same Peer to others. Without one every process is a Peer of its own. Names must be unique among
	// the processes that share a certificate or token. Auth.Authorize must be nil: use Authorize.
	Auth bootstrap.Config
	// Listen is the address that peers dial: "host:port", or ":port" for all addresses. Empty means that this side only
	// dials.
	Listen string
	// Open opens the NICs, which the Node closes: peer.OpenDevices, peer.OpenSoftNICs. Nil means all real NICs or, if there are
	// none, a software NIC on the host of Listen. If Listen names no host, it is on the first address of this host
	// that is not a loopback address.
	Open func() (peer.NICs, error)
	// PeerNetworks are networks that the NICs of peers may be on, see peer.Config.
	PeerNetworks []netip.Prefix
	// Unsealed turns off the encryption of packets between software NICs. Both sides must set it, or neither.
	Unsealed bool
	// Lanes is how many lanes a session has. Zero means one per rail, and at least 2. Use more for few peers with much
	// traffic over NICs that need it.
	Lanes int
	// Shards is how many goroutines can drive sessions at a time, at most 64. Zero means a quarter of
	// GOMAXPROCS, at least 1 and at most 8. Every realm but the first begins with one. There are more if there are
	// more peers than fit the completion queues.
	Shards int
	// Window is how many bytes a session has outstanding. Zero means 8 MiB. A small operation waits behind that
	// much.
	Window int
	// IdleAfter is how long a session is idle before it is parked. Zero means 5 minutes, less than 0 never.
	IdleAfter time.Duration
	// LostTimeout is how long operations wait for a peer that is lost before they end in ErrPeerGone. Zero means 60 s, less
	// than 0 forever. A peer that this side has not dialed is forgotten then.
	LostTimeout time.Duration
	// Authorize says whether an authenticated peer is admitted, and to which realm. It is called before the peer gets
	// any address or key, and again several times a second while it is connected: an error then ends the
	// session. It must not block. Nil admits all to realm "".
	Authorize func(bootstrap.Peer) (Grant, error)
	// Log gets records of peers that come and go. Nil means no log.
	Log *slog.Logger

	// cqDepth is the depth of completion queues, for tests with many Nodes. Zero means the default.
	cqDepth int
}

// Grant is the place of a peer.
type Grant struct {
	// Realm is the realm that the peer belongs to, at most 64 bytes. Peers of different realms reach no memory
	// of each other's. There can be 64 realms. The realm of a peer must not change while the peer is known.
	Realm string
}

// Bounds and defaults of a Config.
const (
	defaultWindow = 8 << 20
	minWindow     = 64 << 10
	maxWindow     = 1 << 30
	defaultIdle   = 5 * time.Minute
	defaultGiveUp = time.Minute
	maxIncarnate  = 1<<53 - 1
)

// MaxLanes limits Config.Lanes.
const MaxLanes = 256

// withDefaults returns c with defaults in place of zeros, or what is wrong with it.
func (c Config) withDefaults() (Config, error) {
	c.Shards = cmp.Or(c.Shards, min(8, max(1, runtime.GOMAXPROCS(0)/4)))
	c.Window = cmp.Or(c.Window, defaultWindow)
	c.IdleAfter = cmp.Or(c.IdleAfter, defaultIdle)
	c.LostTimeout = cmp.Or(c.LostTimeout, defaultGiveUp)
	c.Auth.Incarnation = cmp.Or(c.Auth.Incarnation, rand.Uint64N(maxIncarnate)+1)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Open == nil {
		c.Open = func() (peer.NICs, error) { return openAny(c.Listen) }
	}
	switch {
	case c.Auth.Authorize != nil:
		return c, verbs.Invalidf("Config.Auth.Authorize is set: use Config.Authorize")
	case c.Lanes < 0 || c.Lanes > MaxLanes:
		return c, verbs.Invalidf("Config.Lanes is %d: want at most %d", c.Lanes, MaxLanes)
	case c.Shards < 0 || c.Shards > maxShards:
		return c, verbs.Invalidf("Config.Shards is %d: want at most %d", c.Shards, maxShards)
	case c.Window < minWindow || c.Window > maxWindow:
		return c, verbs.Invalidf("Config.Window is %d: want %d to %d", c.Window, minWindow, maxWindow)
	}
	return c, nil
}

// openAny opens all real NICs or, if there are none, a software NIC on the host of an address.
func openAny(listen string) (peer.NICs, error) {
	nics, err := peer.OpenDevices("")()
	if err == nil {
		return nics, nil
	}
	addr, addrErr := softAddr(listen)
	if addrErr != nil {
		return nics, errors.Join(err, addrErr)
	}
	return peer.OpenSoftNICs(addr)()
}

// softAddr returns the address of a software NIC: that of the host that an address names, or the first one of this host.
func softAddr(listen string) (netip.Addr, error) {
	if ap, err := netip.ParseAddrPort(listen); err == nil && !ap.Addr().IsUnspecified() {
		return ap.Addr().Unmap(), nil
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return netip.Addr{}, fmt.Errorf("addresses of this host: %w", err)
	}
	best := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	for _, a := range addrs {
		p, err := netip.ParsePrefix(a.String())
		if err != nil || !p.Addr().IsGlobalUnicast() {
			continue
		}
		if p.Addr().Is4() {
			return p.Addr(), nil
		}
		if best.IsLoopback() {
			best = p.Addr()
		}
	}
	return best, nil
}
